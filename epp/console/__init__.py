"""The live page of a picker, loaded when somebody first asks for it."""
