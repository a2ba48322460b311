"""Moving a sidecar store from one engine to another: `feedback migrate`."""

from persistence.sidecar.transfer.moving import Moved, Step, abandon, move
from persistence.sidecar.transfer.opening import open_end
from persistence.sidecar.transfer.tables import Census, Table

__all__ = ["Census", "Moved", "Step", "Table", "abandon", "move", "open_end"]
