"""What can never run is refused when it is added, with the reason."""

from dataclasses import dataclass

from gpu_worker.request import Request, RequestRefusedError


@dataclass(frozen=True)
class Limits:
    """What bounds a request. `context`, `pool`: tokens; `vocab`: number of token ids."""

    vocab: int
    context: int
    pool: int

    @property
    def longest(self) -> int:
        """Most tokens a request may have, prompt and output together."""
        return min(self.context, self.pool)

    def check(self, request: Request) -> None:
        """Raise RequestRefusedError for a request that no amount of waiting would make run."""
        if not request.prompt_ids or request.max_tokens < 1:
            raise RequestRefusedError("invalid_request", "a prompt and max_tokens >= 1 are needed")
        if len(request.resume_ids) > request.max_tokens:
            raise RequestRefusedError("invalid_request", "resume_ids exceed max_tokens")
        known = request.prompt_ids + request.resume_ids
        if min(known) < 0 or max(known) >= self.vocab:
            raise RequestRefusedError("invalid_request", "a token id is outside the vocabulary")
        length = len(request.prompt_ids) + request.max_tokens
        if length > self.longest:
            what = "the context" if self.context <= self.pool else "the KV cache"
            raise RequestRefusedError(
                "context_length_exceeded",
                f"prompt {len(request.prompt_ids)} + max_tokens {request.max_tokens} = {length} "
                f"tokens can never fit {what} of {self.longest}",
            )
