"""What the compiled module has (cdc/native/src). Only cdc.native imports it."""

from typing import Final

CRATE_VERSION: Final[str]
