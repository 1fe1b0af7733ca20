"""Headers of the models that the shipped profiles name: keys and tensors, without weights.

``models`` describes them and says what their files weigh, ``mix`` how llama.cpp quantizes, and

    python -m tests.headers.make

writes the files anew.
"""
