"""The HTTP gateway: the contract for browsers and for whoever speaks HTTP (docs/http.md).

It is a host like any other: it asks through `AsyncFeedbackClient`, and reads the event streams and, for what
people look at, the store. `create_app` in `gateway.app` is its one composition root; each module of
`gateway.routes` is one topic.
"""
