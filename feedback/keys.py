"""Every Redis key of this system, and how long each lives. RQ's own keys bear RQ's names.

| key | type | life |
|---|---|---|
| topology | hash | for ever; made anew from the store |
| parked | hash of a worker: partition -> Sessions that wait | PARKED_TTL_S, renewed while any waits |
| owners | hash: partition number -> worker id | for ever; one per generation |
| workers | set of worker ids | dead ones are dropped by whoever notices |
| session of a worker | string: beat | the lease TTL |
| wake of a worker | list | WAKE_TTL_S after the last push |
| claimed | list of job ids | until finished; empty lists do not exist |
| aside | sorted set of `<Session digest>:<place>:<job id>`, all scores 0 | until their turn; empty ones do not exist |
| trials | hash: partition number -> job id tried alone, or "" | until an owner's claims are done; one per generation |
| unpublished | hash: partition -> what is published again; partition-sequence -> why not | UNPUBLISHED_TTL_S |
| events | stream, entry id `<sequence>-0` | trimmed by length |
| checkpoint | hash: partition -> sequence | for ever; one per generation |
| list cache | hash: era, revision, body, latest revision told of | CACHE_TTL_S after the last write of a list |
| projector | string: token of the follower at work | the lease TTL |
| list era | string: replication id, token; entries of another era are absent | for ever; made anew when lost |
| queries, reply | lists | REPLY_TTL_S |
| live Session | hash: owner, session, created_at, cwd | LIVE_TTL_S, renewed by its owner |
| owner of live Sessions | string | the owner's heartbeat TTL |
| flush requests to an owner | list | REPLY_TTL_S |
| agent of a host | hash: agent, root | the agent's lease TTL |
| requests to a host's agent | list | REPLY_TTL_S |
| troubles | hash: process -> its trouble, with its own end | TROUBLE_TTL_S after the last report |
"""

import hashlib
import os

from feedback.partitions import PartitionId

# RQ reads the same variable; both must spell its keys alike.
_RQ = os.environ.get("RQ_KEY_PREFIX", "rq")

TOPOLOGY = "feedback:topology"
WORKERS = "feedback:workers"
QUERIES = "feedback:queries"
LIST_ERA = "feedback:list-era"
PROJECTOR = "feedback:projector"
TROUBLES = "feedback:troubles"
SESSION_PREFIX = "feedback:worker:"
LIVE_PREFIX = "feedback:live:"
OWNER_PREFIX = "feedback:owner:"
WAKE_PREFIX = "feedback:wake:"
RQ_QUEUES = f"{_RQ}:queues"
RQ_JOB_PREFIX = f"{_RQ}:job:"
RQ_RESULTS_PREFIX = f"{_RQ}:results:"

WAKE_TTL_S = 60
REPLY_TTL_S = 60
CACHE_TTL_S = 24 * 3600
LIVE_TTL_S = 3600
TROUBLE_TTL_S = 30
PARKED_TTL_S = 30
UNPUBLISHED_TTL_S = 30 * 24 * 3600


def queue_name_prefix(generation: int) -> str:
    """RQ queue names of one generation, up to the partition's number."""
    return f"feedback-{generation}-"


def queue_name(partition: PartitionId) -> str:
    """The RQ queue's name, as `rq info` shows it."""
    return queue_name_prefix(partition.generation) + str(partition.number)


def queue_prefix(generation: int) -> str:
    """RQ queue keys of one generation, up to the partition's number."""
    return f"{_RQ}:queue:{queue_name_prefix(generation)}"


def queue(partition: PartitionId) -> str:
    return queue_prefix(partition.generation) + str(partition.number)


def finished_registry(partition: PartitionId) -> str:
    return f"{_RQ}:finished:{queue_name(partition)}"


def failed_registry(partition: PartitionId) -> str:
    return f"{_RQ}:failed:{queue_name(partition)}"


def job(command_id: str) -> str:
    return RQ_JOB_PREFIX + command_id


def results(command_id: str) -> str:
    return RQ_RESULTS_PREFIX + command_id


def claimed_prefix(generation: int) -> str:
    """Claimed lists of one generation, up to the partition's number."""
    return f"feedback:claimed:{generation}-"


def claimed(partition: PartitionId) -> str:
    return claimed_prefix(partition.generation) + str(partition.number)


def aside(partition: PartitionId) -> str:
    """Claimed commands that wait in Redis alone; `enqueue.lua` makes the same key of the claimed list's."""
    return claimed(partition) + ":aside"


def trials(generation: int) -> str:
    return f"feedback:trials:{generation}"


def unpublished(generation: int) -> str:
    """What is being published again, and events that are left out (`worker.publishing`)."""
    return f"feedback:unpublished:{generation}"


def events(partition: PartitionId) -> str:
    return f"feedback:events:{partition}"


def owners(generation: int) -> str:
    return f"feedback:owners:{generation}"


def checkpoint(generation: int) -> str:
    return f"feedback:checkpoint:{generation}"


def worker_session(worker_id: str) -> str:
    return SESSION_PREFIX + worker_id


def parked(worker_id: str) -> str:
    """Where a worker says how many Sessions wait (`worker.parked`)."""
    return f"feedback:parked:{worker_id}"


def wake(worker_id: str) -> str:
    return WAKE_PREFIX + worker_id


def session_digest(session_id: str) -> str:
    """A Session in a key: ids are data of any length, so a key holds BLAKE2b-128 of its UTF-8 bytes, in hex."""
    return hashlib.blake2b(session_id.encode(), digest_size=16).hexdigest()


def list_cache(session_id: str) -> str:
    """A digest in the key, the id itself in the body."""
    return "feedback:list:" + session_digest(session_id)


def reply(query_id: str) -> str:
    return f"feedback:reply:{query_id}"


def live(session_id: str) -> str:
    """Where a live Session's owner registers it."""
    return LIVE_PREFIX + session_digest(session_id)


def owner(owner_id: str) -> str:
    return OWNER_PREFIX + owner_id


def agent(host: str) -> str:
    """Where the agent of a host registers itself."""
    return f"feedback:agent:{host}"


def agent_requests(host: str) -> str:
    return f"feedback:agent-requests:{host}"


def flushes(owner_id: str) -> str:
    return f"feedback:flushes:{owner_id}"
