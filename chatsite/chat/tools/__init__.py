"""What a model may call in a chat: each tool a module, all of them in `catalog`. None changes anything or leaves the
site; each is bounded in time and in what it gives back."""
