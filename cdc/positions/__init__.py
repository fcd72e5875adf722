"""How far one is: the vector clock, and the position that a checkpoint keeps."""
