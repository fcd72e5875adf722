"""What orders do to the open requests: the decision about each, and the records that tell of it.

    Received ─▶ take ─▶ the position after it: another request, none any more, a pause, the next place in the signal topic
                        notifications
                        Outcome: a sentence for the log, or a refusal for whoever asked

An order never fails otherwise than by a refusal. A signal's place is recorded with what it does, in one commit, so a signal is
carried out once, whatever ends the daemon in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from cdc.errors import RequestError
from cdc.events.json_values import encode
from cdc.events.name_patterns import Budget, NamePattern, PatternError
from cdc.events.notifications import NoteType
from cdc.positions.position import Position
from cdc.positions.requests import Request, SignalPlace
from cdc.schema.forms import SpaceForm
from cdc.stream.batches.covered import Covered
from cdc.stream.batches.event_context import EventContext
from cdc.stream.snapshots.backfill import OTHER_RULES, end, has_other_rules, names_of, new_filter, published_space
from cdc.stream.snapshots.orders import Acknowledge, Condition, Execute, Log, Order, Pause, Received, Refused, Resume, Stop

REQUESTS_MAX: Final = 16
"""Maximum number of open requests: all of them are a part of every checkpoint."""
_BYTES_MAX: Final = 128 * 1024
"""Maximum size of the open requests in a checkpoint, when one is accepted: a filter is there once for each of its spaces."""
_NAMES_SHOWN: Final = 20
_PATTERN_SHOWN: Final = 60
_FILTERS_TRIED: Final = 8
"""Number of filters that are compiled when a request arrives: to compile one takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order: a sentence with details for the log, and the error if it was refused."""

    sentence: str = ""
    about: dict[str, object] = field(default_factory=dict)
    refusal: RequestError | None = None


class RequestDesk:
    """Taker of orders, in one pipeline."""

    def __init__(self, context: EventContext) -> None:
        self._context = context

    def take(self, received: Received, position: Position, now_us: int) -> tuple[Position, Outcome]:
        """Carry out an order at `position`, where neither a transaction nor a snapshot is open; return the position after it.

        A signal that was taken before changes nothing.
        """
        order, place, outcome, before = received.order, received.place, Outcome(), position
        if order is not None and place is not None and _was_taken(place, position.requests.signals):
            return position, outcome
        if order is not None:
            try:
                position, outcome = self._carry_out(order, position, now_us)
            except RequestError as error:
                outcome = Outcome("a signal was skipped", {"id": order.id, "reason": str(error)}, error)
                if place is not None:
                    self._context.notifier.order(order.id, "SKIPPED", now_us, reason=error.public)
        if place is not None:
            position = replace(position, requests=replace(position.requests, signals=place))
        if position is not before:
            position = replace(position, requests=replace(position.requests, order_count=before.requests.order_count + 1))
        return position, outcome

    def _carry_out(self, order: Order, position: Position, now_us: int) -> tuple[Position, Outcome]:
        match order:
            case Execute():
                return self._execute(order, position)
            case Stop():
                return self._stop(order, position, now_us)
            case Pause():
                return self._pause(position, now_us, "PAUSED")
            case Resume():
                return self._pause(position, now_us, "RESUMED")
            case Acknowledge():
                self._context.builder.covered += [Covered(topic) for topic in order.topics]
                # Another object: the batch that has the acknowledgement ends there.
                return replace(position), Outcome("lost topics were acknowledged", {"id": order.id, "topics": order.topics})
            case Log():
                message = order.message.replace("{}", str(position.vclock), 1)
                return position, Outcome("a signal says", {"id": order.id, "message": message})
            case Refused():
                raise RequestError(order.sentence)
            case _:
                raise AssertionError(f"{order} can't be carried out")

    # Requests for rows.

    def _execute(self, order: Execute, position: Position) -> tuple[Position, Outcome]:
        requests = position.requests
        if any(request.id == order.id for request in requests.open):
            if order.exact:
                return position, Outcome()  # the daemon's own id: the order is here again after an aborted commit
            raise RequestError(f"a request with the id {order.id!r} is open already", "Give each signal another id.")
        if len(requests.open) >= REQUESTS_MAX:
            raise RequestError(f"{REQUESTS_MAX} requests are waiting already", "Try again when they are done.")
        if self._context.images is None:
            raise RequestError(
                "the daemon keeps no rows that it could publish again", 'Set state.images = "full" and start it again.'
            )
        if has_other_rules(self._context.spaces):
            raise RequestError(OTHER_RULES, "Request rows after that, if they are still needed then.")
        budget = Budget()
        forms = self._named(order.spaces) if order.exact else self._selected(order.spaces, budget)
        filters = self._filters(order.conditions, forms, None if order.exact else budget)
        request = Request(order.id, tuple(form.space_id for form in forms), filters)
        requests = replace(requests, open=(*requests.open, request))
        if (size := len(encode(requests.to_json()))) > _BYTES_MAX:
            raise RequestError(
                f"the open requests would have {size} bytes in each checkpoint, {_BYTES_MAX} are allowed",
                "Ask for fewer spaces, write a shorter filter, or try again when others are done.",
            )
        outcome = Outcome("rows were asked for", {"id": order.id, "spaces": [form.name for form in forms]})
        return replace(position, requests=requests), outcome

    def _named(self, names: Iterable[str]) -> list[SpaceForm]:
        """Return the forms of published spaces with these names. Raises RequestError if there is none, or no images of it."""
        published = {form.name: form for form in self._context.spaces.published_forms()}
        found: list[SpaceForm] = []
        for name in dict.fromkeys(names):
            form = published.get(name)
            if form is None:
                raise RequestError(f"no space {name!r} is published", f"Published are: {_listed(published)}.")
            if (reason := self._lacks_images(form)) is not None:
                raise RequestError(f"space {name!r} has no images to be shown again: {reason}", "Name only spaces that have.")
            found.append(form)
        return found

    def _selected(self, patterns: Sequence[str], budget: Budget) -> list[SpaceForm]:
        """Return the forms of the published spaces that patterns select. Raises RequestError if there is none with images."""
        published = self._context.spaces.published_forms()
        selected = self._selector(patterns, budget)
        found = [form for form in published if selected(form.name)]
        if not found:
            raise RequestError(
                f"no published space matches {_listed(repr(pattern[:_PATTERN_SHOWN]) for pattern in patterns)}",
                f"Published are: {_listed(form.name for form in published)}.",
            )
        usable = [form for form in found if self._lacks_images(form) is None]
        if not usable:
            raise RequestError(f"the spaces have no images to be shown again: {self._lacks_images(found[0])}")
        return usable

    def _lacks_images(self, form: SpaceForm) -> str | None:
        if published_space(self._context.spaces, form.space_id) is not None:
            return None
        images = self._context.images
        return "it is just being made" if images is None else images.spaces_without_images.get(form.name, "it is just being made")

    def _filters(
        self, conditions: Sequence[Condition], forms: Sequence[SpaceForm], budget: Budget | None
    ) -> tuple[tuple[int, str], ...]:
        """Return the filters by space id: the first of the conditions that concerns the space.

        Raises RequestError, also if one of the first filters can't be used; if another one can't, its space ends the request.
        """
        left = {form.space_id: form for form in forms}
        found: list[tuple[int, str]] = []
        for condition in conditions:
            concerns = (lambda _: True) if condition.spaces is None else self._selector([condition.spaces], budget)
            for form in [form for form in left.values() if concerns(form.name)]:
                del left[form.space_id]
                if len(found) < _FILTERS_TRIED:
                    new_filter(self._context, form, condition.expression)
                found.append((form.space_id, condition.expression))
        return tuple(found)

    def _selector(self, spaces: Sequence[str], budget: Budget | None) -> Callable[[str], bool]:
        """Return a function that says whether a space's name matches one of these patterns, or is one of them without `budget`.

        All patterns of an order have the same budget.
        """
        if budget is None:
            return frozenset(spaces).__contains__
        try:
            patterns = [NamePattern(space, budget) for space in spaces]
        except PatternError as error:
            raise RequestError(str(error)) from error
        collection = self._context.notifier.collection

        def is_selected(name: str) -> bool:
            try:
                return any(pattern.matches(text) for text in (name, collection(name)) for pattern in patterns)
            except PatternError as error:
                raise RequestError(str(error), "Send simpler expressions, or fewer.") from error

        return is_selected

    # Their end, and pauses.

    def _stop(self, order: Stop, position: Position, now_us: int) -> tuple[Position, Outcome]:
        requests, spaces = position.requests, self._context.spaces
        is_stopped = (lambda _: True) if order.spaces is None else self._selector(order.spaces, None if order.exact else Budget())
        left = [
            tuple(space_id for space_id in request.space_ids if not is_stopped(spaces.schema.name(space_id) or ""))
            for request in requests.open
        ]
        if not requests.open or left == [request.space_ids for request in requests.open]:
            raise RequestError("no open request has rows of these spaces to be published")
        ended: list[str] = []
        kept: list[Request] = []
        for place, (request, rest) in enumerate(zip(requests.open, left, strict=True)):
            if not rest:
                single = replace(position, requests=replace(requests, open=(request,)))
                position = end(single, now_us, self._context, f"the order {order.id} stopped it")
                ended.append(request.id)
            elif rest[0] != request.space_ids[0] and place == 0:
                kept.append(replace(request, space_ids=rest, after=b"", shown=0, row_count=0))
            else:
                kept.append(replace(request, space_ids=rest))
        is_paused = requests.is_paused and bool(kept)
        position = replace(position, requests=replace(requests, open=tuple(kept), is_paused=is_paused))
        return position, Outcome("requests for rows were stopped", {"id": order.id, "ended": ended, "left": len(kept)})

    def _pause(self, position: Position, now_us: int, type_: NoteType) -> tuple[Position, Outcome]:
        requests, is_paused = position.requests, type_ == "PAUSED"
        request = requests.current
        if request is None:
            raise RequestError("no request for rows is open")
        if requests.is_paused == is_paused:
            raise RequestError("requests for rows pause already" if is_paused else "requests for rows don't pause")
        self._context.notifier.request(request, type_, now_us, names_of(self._context.spaces, request.space_ids))
        sentence: Literal["requests for rows pause", "requests for rows continue"]
        sentence = "requests for rows pause" if is_paused else "requests for rows continue"
        return replace(position, requests=replace(requests, is_paused=is_paused)), Outcome(sentence, {"id": request.id})


def _was_taken(place: SignalPlace, known: SignalPlace | None) -> bool:
    """Return whether the signal before `place` was taken before, given up to where signals have been."""
    return known is not None and place.topic_id == known.topic_id and place.offset <= known.offset


def _listed(names: Iterable[str]) -> str:
    known = sorted(names)
    return ", ".join(known[:_NAMES_SHOWN]) + (", …" if len(known) > _NAMES_SHOWN else "") or "none"
