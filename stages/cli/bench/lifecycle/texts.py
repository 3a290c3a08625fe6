"""Did each client get each token once, and the text that belongs to them?"""

from collections.abc import Collection, Mapping

from stages.cli.bench.lifecycle.call import Call
from stages.cli.bench.lifecycle.site import Site


def repeats(
    site: Site, calls: list[Call], references: Mapping[int, str], undisturbed: Collection[str]
) -> list[str]:
    """What is wrong, by call. `references`: texts of the prompts, of calls of the same length."""
    found = []
    for call in calls:
        wrong = list(call.repeats)
        if call.problem is None:
            wrong += _text(site, call, references, undisturbed)
        found += [f"{call.request_id} ({call.door}): {each}" for each in wrong]
    return found


def _text(
    site: Site, call: Call, references: Mapping[int, str], undisturbed: Collection[str]
) -> list[str]:
    """Nothing twice, nothing missing."""
    if call.door != "http":
        if len(call.ids) != call.tokens:
            return [f"{len(call.ids)} tokens came of {call.tokens}"]
        same = call.text == site.prompts.tokenizer.decode(call.ids)
        return [] if same else ["the text is not that of its tokens"]
    if call.offset not in (
        call.tokens,
        call.tokens + 1,
    ):  # + 1: text that only the end made certain
        return [f"the last event is at {call.offset} of {call.tokens} tokens"]
    # Without token ids a text is compared with that of an undisturbed call. One that went on at
    # another executor may rightly differ from there on: its KV was computed by prefill.
    if call.request_id not in undisturbed:
        return []
    same = call.text == references[call.prompt]
    return [] if same else ["the text is not that of the same call undisturbed"]
