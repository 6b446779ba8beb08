"""Hardware profiles as data, and the code that matches a GPU to one."""
