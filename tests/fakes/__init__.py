"""Small but true stand-ins for servers, importable from every test."""
