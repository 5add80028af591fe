"""The level of a water-fill as doubles see it: fast; `apportion` proves it before it is used."""

from fairlead.core.claims import Claim, events_of, reach, rising_at_start


def rough_level(missing: int, claims: list[Claim], starts: list[int]) -> tuple[int, int]:
    """The level as doubles see it; (0, 0): they see none.

    Only which events come before it is theirs to say; the fraction is made of integers.
    """
    events = events_of(claims, starts)
    number, rate = missing, rising_at_start(claims, starts, events)
    try:
        left, rising = float(number), float(rate)
        rates = [float(claims[event // 2].rate) for event in events]
        reaches = [float(reach(claims, event)) for event in events]
    except OverflowError:
        return 0, 0
    times = [far / rates[place] for place, far in enumerate(reaches)]
    for place in sorted(range(len(times)), key=times.__getitem__):
        if rate and left <= rising * times[place]:
            return number, rate
        event = events[place]
        if event % 2:
            rate, rising = rate - claims[event // 2].rate, rising - rates[place]
            number, left = number - reach(claims, event), left - reaches[place]
        else:
            rate, rising = rate + claims[event // 2].rate, rising + rates[place]
            number, left = number + reach(claims, event), left + reaches[place]
    return 0, 0
