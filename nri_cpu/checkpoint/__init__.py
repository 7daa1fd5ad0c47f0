"""The files that the two processes share: prepared claims, owners, locks, and a claim's CDI spec, its second record.

errors, strictjson, fields, model, envelope, codec and the first half of cdi are values in, values out; files, follow,
watch, locks and boot are thin readers and writers. One process writes a file at a time; readers never lock.
"""
