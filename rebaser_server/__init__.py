"""Doing: the daemon that applies requests and keeps dependent values right."""
