"""`python -m cdc.native`: prints which row path an installation uses, and why, and where this installation is.

Python prefers a checkout in the present directory to what is installed.
"""

from pathlib import Path

from cdc import native

if __name__ == "__main__":
    print(f"row path: {native.ROW_PATH}, as {native.REASON}; of {Path(native.__file__).parents[1]}")
