"""`python -m cdc.native`: says which row path an installation has."""

from cdc import native

if __name__ == "__main__":
    print(f"row path: {native.ROW_PATH}, as {native.REASON}")
