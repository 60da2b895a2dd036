"""A wheel of seconds for things that happen once and may be cancelled: session expiry, will delay.

slots: second -> {timer, ...}     a timer knows its second, so cancelling is a set operation
"""

from __future__ import annotations

from collections.abc import Callable


class Timer:
    """One appointment. `cancel` is harmless at any time, also after it fired."""

    __slots__ = ("_wheel", "action", "second")

    def __init__(self, wheel: TimerWheel, second: int, action: Callable[[], None]) -> None:
        self._wheel = wheel
        self.second = second
        self.action = action

    def cancel(self) -> None:
        self._wheel.remove(self)


class TimerWheel:
    """Fires timers in the second in which they are due, never before. The owner calls `turn` about twice a second."""

    def __init__(self, now_s: float) -> None:
        self._slots: dict[int, set[Timer]] = {}
        self._now_s = now_s
        self._turned_to = int(now_s)  # the last second whose timers have fired

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots.values())

    def after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        due = self._now_s + delay_s
        second = max(int(due) + (due > int(due)), self._turned_to + 1)
        timer = Timer(self, second, action)
        self._slots.setdefault(second, set()).add(timer)
        return timer

    def remove(self, timer: Timer) -> None:
        slot = self._slots.get(timer.second)
        if slot is not None:
            slot.discard(timer)
            if not slot:
                del self._slots[timer.second]

    def turn(self, now_s: float) -> None:
        """Fires everything that is due at `now_s`. After a long pause the slots in between are fired in order."""
        self._now_s = now_s
        target = int(now_s)
        if target - self._turned_to > len(self._slots):
            due = sorted(second for second in self._slots if second <= target)
        else:
            due = [second for second in range(self._turned_to + 1, target + 1) if second in self._slots]
        self._turned_to = max(self._turned_to, target)
        for second in due:
            for timer in self._slots.pop(second, ()):
                timer.action()
