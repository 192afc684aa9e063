"""Why an answer failed, in its reader's words. A row keeps the sentence of whoever failed, which is English and has the
details; in another language there is one for each code, and that sentence where the code has none. Used by `message`.
"""

from __future__ import annotations

from django.utils.translation import get_language, gettext_lazy

from chatsite.chat.models import Generation

SENTENCES = {
    "bad_logits": gettext_lazy("The model gave values that mean nothing."),
    "engine_died": gettext_lazy("The engine broke down while writing this answer."),
    "engine_error": gettext_lazy("The engine could not go on with this answer."),
    "engine_stopped": gettext_lazy("The worker was shut down while writing this answer."),
    "error": gettext_lazy("The answer could not be written."),
    "model_not_served": gettext_lazy("No worker serves this model any more."),
    "prompt_too_long": gettext_lazy("The conversation does not fit the model's context."),
    "request_lost": gettext_lazy("The question was lost before it was answered. Send it again."),
    "text_differs": gettext_lazy("Another worker's model reads the text written so far differently."),
    "worker_fault": gettext_lazy("The worker failed while writing this answer."),
    "log_unreadable": gettext_lazy("What the worker wrote could not be read. Ask again."),
    "worker_lost": gettext_lazy("The worker was lost while writing this answer."),
}


def sentence_of(generation: Generation) -> str:
    """What to say of a failed answer; empty where nothing is known."""
    if (get_language() or "en").startswith("en"):
        return generation.error_message
    return str(SENTENCES.get(generation.error_code, generation.error_message))
