"""What a gateway tells about its work, to whoever measures it (`gateway.metrics`)."""

from starlette.types import ASGIApp


class Meter:
    """Measures nothing: what a gateway has whose metrics are off."""

    def turn(self) -> None:
        """The event loop is turning: called several times a second."""

    def measured(self, app: ASGIApp) -> ASGIApp:
        """The application to serve in place of this one."""
        return app
