"""Faults put in on purpose: kills, crashes, full and slow disks, cut links.

Each fault hits a real daemon from outside, in a process of its own; nothing of logd is replaced.
"""
