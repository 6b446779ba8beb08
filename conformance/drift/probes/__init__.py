"""What runs audited code: in a process of its own (`execute` starts it), behind `guard`, with torch on meta or CPU."""
