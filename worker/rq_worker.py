"""Our worker as RQ sees it: registered, alive and listed by `rq info`, with a loop of its own."""

import logging
import threading

from rq import Queue
from rq.worker import BaseWorker, WorkerStatus

from feedback import keys
from feedback.connection import like
from feedback.wire import Serializer
from worker.loop import PartitionLoop
from worker.runtime import Runtime

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 60.0


class FeedbackWorker(BaseWorker):  # type: ignore[misc]  # RQ is not typed
    """An RQ worker on all queues of the topology, of which it serves the partitions that it leases.

    RQ's own loop would take one job at a time, run whatever function the job names, and quit on a READONLY
    or OOM reply (PEERS, section 3); this one serves batches of commands and nothing else.
    """

    def __init__(self, loop: PartitionLoop, runtime: Runtime, worker_id: str) -> None:
        # RQ raises the socket timeout of the client that it is given to minutes: this one is its own.
        self._presence = like(runtime.redis)
        queues = [
            Queue(keys.queue_name(partition), connection=self._presence, serializer=Serializer)
            for partition in runtime.standing.served.all_partitions()
        ]
        super().__init__(queues, name=worker_id, connection=self._presence, serializer=Serializer)
        self._loop = loop

    def serve(self, stop: threading.Event) -> None:
        """Run the loop to its end, registered with RQ for as long."""
        over = threading.Event()
        heart = threading.Thread(target=self._keep_registered, args=(over,), name="rq-presence", daemon=True)
        try:
            heart.start()
            self._loop.run(stop)
        finally:
            over.set()
            heart.join()
            self._presence.close()

    def _keep_registered(self, over: threading.Event) -> None:
        """Being listed is a courtesy: no failure of it may disturb the work."""
        while True:
            try:
                if over.is_set():
                    self.register_death()
                    return
                if self.connection.exists(self.key):
                    self.heartbeat()
                else:
                    # At the start, or a server that forgot: a heartbeat alone would leave half an entry there.
                    self.register_birth()
                    self.set_state(WorkerStatus.STARTED)
            except Exception as error:  # noqa: BLE001 - see above
                logger.warning("not registered with RQ: %s", error)
                if over.is_set():
                    return
            over.wait(_HEARTBEAT_S)
