"""`rebaser demo`: which packages of Debian are exposed to a security fix, on the real thing."""
