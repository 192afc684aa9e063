"""The web server: Daphne, taught to hand a body on as it comes, and to wait for nobody for ever.

    __main__   the process: `python -m chatsite.server`, with all options of `daphne`
    site       the server itself: which classes stand for connections, requests and sockets
    channel    one connection: heads have a size and a time, a refused body is not read
    request    one request with a body: the application begins at its head and asks for the rest
    sockets    one WebSocket: small messages, and not too many that wait

Daphne by itself reads a whole request, whatever its size, to memory or to disk before the application hears of it.
What may come at all is decided by `chatsite.gate`, which works behind any ASGI server that streams bodies.
"""
