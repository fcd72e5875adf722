"""`python -m cdc.native`: prints which row path an installation uses, and why."""

from cdc import native

if __name__ == "__main__":
    print(f"row path: {native.ROW_PATH}, as {native.REASON}")
