"""What a request must pass before its body is read: length, identity, room, pace.

    limits     how many bytes a body may have, by route and by who sends it
    visitor    who asks, and from where; found out at most once a request
    room       what all bodies on their way may take together, and how many may come from one address
    pace       how slowly a body may come
    refusals   what is said to who does not pass, as page, fragment, JSON or plain text
    bodies     the ASGI layer that applies them

The whole site stands behind it (`asgi`), pages as well as consumers. It works behind any ASGI server that begins the
application before the body has come, as `chatsite.server` does.
"""
