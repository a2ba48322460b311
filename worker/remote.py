"""The barrier for Sessions whose logs this worker cannot see: their hosts' agents are asked (docs/agents.md).

A Session's commands wait, parked, until the evidence is there or time is up, while all other Sessions go on. Evidence
is good for the one batch that asked for it: with the partition or the batch it is gone, and asked for anew.
"""

from collections.abc import Mapping, Sequence

from barrier.rules import Answer, Barrier, DurabilityBarrier, Need
from feedback.commands import Command, PutCommand
from feedback.errors import Disposition, FeedbackError, HostUnknown
from feedback.evidence import MOST_ID_CHARS, Evidence, LogQuestion
from feedback.hosts import Sight
from worker.claims import Claim


class EvidenceNeeded(FeedbackError):
    """The agent of a Session's host has to be asked first. Never leaves the worker."""

    disposition = Disposition.RETRYABLE

    def __init__(self, host: str) -> None:
        super().__init__(f"waits for evidence from host {host}")
        self.host = host


class OutOfTurn(FeedbackError):
    """The Session's earlier commands are tried first, by themselves. Never leaves the worker."""

    disposition = Disposition.RETRYABLE

    def __init__(self) -> None:
        super().__init__("waits for the Session's earlier commands, whose log lies elsewhere, or that were asked about")


class PlacedBarrier:
    """One barrier for all Sessions: a log that this worker sees is looked at here, for others evidence is needed."""

    def __init__(self, sight: Sight, local: DurabilityBarrier | None) -> None:
        """`local` is the barrier of the logs that `sight` says this worker sees."""
        self._sight = sight
        self._local = local

    def check(self, needs: Mapping[str, Need]) -> dict[str, Barrier]:
        """The answer for each Session id: `EvidenceNeeded` where an agent must be asked, `HostUnknown` where nobody
        said which, `FlushNeeded` where a live owner has to flush first."""
        answers: dict[str, Barrier] = {}
        here: dict[str, Need] = {}
        for session_id, need in needs.items():
            try:
                host = self._sight.agent_for(need.host)
            except HostUnknown as error:
                answers[session_id] = error
                continue
            if host is None:
                here[session_id] = need
            else:
                answers[session_id] = _testified(host, need.answer)
        return answers if self._local is None or not here else {**answers, **self._local.check(here)}


def in_turn(claims: Sequence[Claim], answers: Mapping[str, Answer]) -> tuple[list[Claim], list[Claim]]:
    """Commands that can be judged now, in order, and those that have to wait behind the others of their Session.

    One batch judges a Session by one log, that of the host which its first command names; and by evidence only
    what was asked about.
    """
    if not answers and all(claim.command.host is None for claim in claims):
        return list(claims), []
    now: list[Claim] = []
    later: list[Claim] = []
    first: dict[str, Command] = {}
    held: set[str] = set()
    for claim in claims:
        command = claim.command
        session_id = command.session_id
        leader = first.setdefault(session_id, command)
        if session_id in held or command.host != leader.host or not _answers(answers.get(session_id), command):
            held.add(session_id)
            later.append(claim)
        else:
            now.append(claim)
    return now, later


def question_of(host: str, commands: Sequence[Command]) -> LogQuestion:
    """What an agent is asked about a Session: the leading commands whose log lies with it, as many as fit."""
    message_ids: dict[str, None] = {}
    room = MOST_ID_CHARS
    for command in commands:
        if command.host != host:
            break
        if isinstance(command, PutCommand) and command.message_id not in message_ids:
            room -= len(command.message_id)
            if room < 0:
                break
            message_ids[command.message_id] = None
    return LogQuestion(session_id=commands[0].session_id, message_ids=tuple(message_ids), durable=bool(message_ids))


def _testified(host: str, answer: Answer | None) -> Barrier:
    if isinstance(answer, FeedbackError):
        return answer
    if isinstance(answer, Evidence):
        return answer.log
    return EvidenceNeeded(host)


def _answers(answer: Answer | None, command: Command) -> bool:
    """Whether what was asked for a Session is about this command, too."""
    if not isinstance(answer, Evidence) or answer.log is None or not isinstance(command, PutCommand):
        return True
    return command.message_id in answer.log.asked
