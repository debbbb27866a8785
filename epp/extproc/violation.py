"""How the protocol machine tells itself of a broken rule; `stream` ends the exchange for it."""


class ViolationError(Exception):
    """A message that the protocol does not allow where it came.

    Args:
        detail: one sentence for the operator.
        status: name of the gRPC status to end the stream with.
    """

    def __init__(self, detail: str, status: str = "INVALID_ARGUMENT") -> None:
        self.detail, self.status = detail, status
        super().__init__(detail)
