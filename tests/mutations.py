"""Take one safety measure at a time out of the code, and see that a named test notices.

    python -m tests.mutations            all of them, in a copy of the tree
    python -m tests.mutations roll       those with this in their name

Each mutation is a piece of a file, what stands there instead, and the test that has to fail. The
test is first run on the unchanged copy, where it must pass: a test that cannot pass proves nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.support.source_copy import copy_tree, environment

SMALL_READS = "tests/integration/storage/test_small_reads.py::"
ORDER = "tests/integration/faults/test_call_order.py::"
OUT_OF_PLACE = "tests/integration/storage/test_files_out_of_place.py::"
BACKUP_MODEL = "tests/unit/test_backup_model.py"
FORWARD_MODEL = "tests/unit/test_forward_model.py"
FORWARD_FILES = "tests/unit/test_forward_files.py::"
POSITION = "tests/integration/storage/test_every_position.py::"
CURSORS = "tests/integration/storage/test_cursors.py::"
CURSOR_COMMITS = "tests/unit/test_cursor_commits.py::"
UNACKED = "tests/unit/test_unacked.py::"
SPOOL = "tests/unit/test_spool.py::"
DELIVERY = "tests/unit/test_delivery.py::"
WRITER = "tests/unit/test_writer_delivery.py::"
PARITY = "tests/integration/clients/test_writer_parity.py::"
AIO_WRITER = "tests/integration/clients/test_aio_writer.py::"
NONBLOCKING = "tests/unit/test_nonblocking_socket.py::"
TOKENS = "tests/integration/security/test_tokens.py::"
TLS = "tests/integration/security/test_tls.py::"
LISTENERS = "tests/integration/security/test_listeners.py::"
BACKUP = "tests/integration/operations/test_backup.py::"
SINGLE = "tests/integration/storage/test_single_messages.py::"
HOOK = "tests/integration/archive/test_partition_file.py::"
MANIFEST = "tests/integration/archive/test_manifest.py::"


class Mutation(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS = [
    # -- backups
    Mutation("backup: no sync of the copy", "logd/offline/topic_backup.py",
             "        disk.sync(ours.file)\n", "",
             BACKUP + "test_each_sync_comes_before_the_word_that_relies_on_it"),
    Mutation("backup: a file that a roll may take back is copied", "logd/offline/backup.py",
             "        partitions.pop()  # a roll", "        pass  # a roll",
             BACKUP + "test_a_roll_that_was_taken_back"),
    Mutation("backup: files are not held open", "logd/offline/backup.py",
             "_OPENED_AHEAD = 64", "_OPENED_AHEAD = 1",
             BACKUP + "test_partitions_that_go_while_one_is_copied_are_held"),
    Mutation("backup: nobody asks which topic the files are of", "logd/offline/backup.py",
             "    if read_meta(source)[0] != topic_id:\n", "    if False:\n",
             BACKUP + "test_a_topic_made_anew_under_the_copying"),
    Mutation("backup: producers of another topic of the name", "logd/offline/backup.py",
             "if snapshot.id != topic_id:", "if False:",
             BACKUP_MODEL),
    Mutation("backup: producers of what has expired forgotten", "logd/offline/backup.py",
             "if snapshot.readable.first > side_files.ids_to:", "if False:",
             BACKUP_MODEL),
    Mutation("backup: what was cut off the source stays", "logd/offline/topic_backup.py",
             "if not same_bytes(source.file, ours.file, source.size):", "if False:",
             BACKUP_MODEL),
    Mutation("offline: a look at two topics", "logd/offline/reader.py",
             "return read_meta(directory)[0], _state(directory)",
             'return "", _state(directory)',
             BACKUP_MODEL),
    Mutation("backup: what a kill left is not cut", "logd/offline/topic_backup.py",
             "        disk.cut(ours.file, start)  # what", "        pass  # what",
             BACKUP + "test_bytes_behind_the_copy_s_checkpoint_do_not_stay"),
    Mutation("backup: files go before the checkpoint", "logd/offline/topic_backup.py",
             "        if first > self.state.first:\n", "        if False:\n",
             BACKUP + "test_what_expired_in_the_source_goes_from_the_copy"),
    Mutation("backup: the copy is not read again", "logd/offline/topic_backup.py",
             "        if result.torn or result.damages or result.next != source.next:\n",
             "        if False:\n",
             BACKUP + "test_bytes_that_change_on_the_way_are_noticed"),
    Mutation("backup: a daemon's own data is added to", "logd/offline/topic_backup.py",
             "        if saved != mark and saved.sequence != mark.sequence - 1:\n",
             "        if False:\n",
             BACKUP + "test_a_copy_that_a_daemon_has_run_on_is_not_touched"),
    Mutation("backup: nobody compares the copy with its source", "logd/offline/backup.py",
             "    if ours is None or not same_bytes(",
             "    if ours is None or False and not same_bytes(",
             BACKUP + "test_a_source_that_has_lost_what_the_copy_has"),
    # -- syncs of data
    Mutation("always: no sync before the answer", "logd/storage/topic_sync.py",
             "        topic.active.sync()\n", "",
             ORDER + "test_with_always_each_answer_comes_after_a_sync_of_what_it_answers"),
    Mutation("roll: old partition not synced", "logd/storage/topic_files.py",
             "        old.sync()\n", "",
             ORDER + "test_a_roll_finishes_the_old_file_before_the_new_ones_first_byte"),
    Mutation("stop: data not synced", "logd/storage/topic_files.py",
             "        active.sync()\n", "",
             ORDER + "test_a_stop_is_called_clean_only_when_all_is_on_disk"),
    Mutation("stop: clean flag not synced", "logd/storage/topic_files.py",
             "self._state_at(end, clean=True), synced=True)", "self._state_at(end, clean=True))",
             ORDER + "test_a_stop_is_called_clean_only_when_all_is_on_disk"),
    Mutation("first write: clean flag not cleared on disk", "logd/storage/topic_files.py",
             "self._checkpoint.write(self._state_at(end), synced=True)",
             "self._checkpoint.write(self._state_at(end))",
             ORDER + "test_the_clean_flag_is_cleared_on_disk_before_a_runs_first_write"),
    Mutation("new file: content not synced", "logd/storage/disk.py",
             "    if content:\n        write_at(file, [content], 0)\n        sync(file)\n",
             "    if content:\n        write_at(file, [content], 0)\n",
             ORDER + "test_a_new_topic_is_on_disk_before_its_first_answer"),
    Mutation("replaced file: content not synced", "logd/storage/disk.py",
             "        write_at(file, [content], 0)\n        sync(file)\n    except",
             "        write_at(file, [content], 0)\n    except",
             ORDER + "test_what_is_renamed_is_synced_before_and_its_directory_after"),
    Mutation("a sync that fails is passed over", "logd/storage/disk.py",
             'raise SyncFailed(f"fdatasync: {error.strerror}") from error', "pass",
             "tests/integration/faults/test_failed_syncs.py::test_each_sync_of_a_short_life_fails"),
    Mutation("cursors: with always no sync before the answer", "logd/storage/cursor_commits.py",
             "            if self._policy.acks_wait:\n                self._file.sync()\n", "",
             CURSOR_COMMITS + "test_with_always_the_sync_comes_before_the_answer"),
    Mutation("cursors: not synced at the stop", "logd/storage/cursor_commits.py",
             "            return self._unsynced > 0\n", "            return False\n",
             CURSOR_COMMITS + "test_with_never_there_is_none_before_the_stop"),
    Mutation("cursors: cached, not on disk, when they are read", "logd/storage/cursors.py",
             "        disk.sync(file)\n", "",
             "tests/unit/test_cursors.py"),
    # -- syncs of directories
    Mutation("new topic: its directory not synced", "logd/storage/topic_files.py",
             "    disk.sync_directory(hidden)\n", "",
             ORDER + "test_a_new_topic_is_on_disk_before_its_first_answer"),
    Mutation("new topic: its name not synced", "logd/storage/topic_files.py",
             "    disk.sync_directory(directory.parent)\n", "",
             ORDER + "test_a_new_topic_is_on_disk_before_its_first_answer"),
    Mutation("roll: new file's name not synced", "logd/storage/topic_files.py",
             "        disk.sync_directory(new.path.parent)\n", "",
             ORDER + "test_a_roll_finishes_the_old_file_before_the_new_ones_first_byte"),
    Mutation("replaced file: its name not synced", "logd/storage/disk.py",
             "    rename(temporary, path)\n    sync_directory(path.parent)\n",
             "    rename(temporary, path)\n",
             ORDER + "test_what_is_renamed_is_synced_before_and_its_directory_after"),
    Mutation("start: names of topics not synced", "logd/store.py",
             "        disk.sync_directory(self._directory)\n", "",
             ORDER + "test_the_names_that_a_start_finds_are_on_disk_before_its_first_answer"),
    Mutation("retention: removal not synced", "logd/storage/topic_files.py",
             "    disk.sync_directory(partition.path.parent)\n", "",
             "tests/unit/test_topic_deletion.py"),
    Mutation("retention: first not on disk before the file goes", "logd/storage/topic_files.py",
             "self._checkpoint.write(state, synced=True)", "self._checkpoint.write(state)",
             ORDER + "test_retention_notes_what_goes_before_it_goes"),
    # -- recovery and repair
    Mutation("recovery: not synced before it is read", "logd/storage/recovery.py",
             "        disk.sync(active.file)\n", "",
             ORDER + "test_a_recovery_reads_what_is_on_disk_and_not_what_is_cached"),
    Mutation("recovery: cache not dropped", "logd/storage/recovery.py",
             "        disk.drop_cache(active.file)\n", "",
             ORDER + "test_a_recovery_reads_what_is_on_disk_and_not_what_is_cached"),
    Mutation("recovery: its checkpoint not synced", "logd/storage/recovery.py",
             "checkpoint.write(state, synced=True)", "checkpoint.write(state)",
             ORDER + "test_a_recovery_reads_what_is_on_disk_and_not_what_is_cached"),
    Mutation("accepted loss: new file not synced", "logd/repair.py",
             "        _copy_around(file, damages, target)\n        disk.sync(target)\n",
             "        _copy_around(file, damages, target)\n",
             "tests/integration/storage/test_repair_syncs.py"),
    Mutation("accepted loss: new file's name not synced", "logd/repair.py",
             "    disk.rename(temporary, path)\n    disk.sync_directory(path.parent)\n",
             "    disk.rename(temporary, path)\n",
             "tests/integration/storage/test_repair_syncs.py"),
    Mutation("accepted loss: log not synced before its checkpoint", "logd/offline/integrity.py",
             "    disk.sync(active.file)\n", "",
             "tests/integration/storage/test_repair_syncs.py"),
    Mutation("torn tail: copy not synced", "logd/repair.py",
             "        _copy(file, position, end, target)\n        disk.sync(target)\n",
             "        _copy(file, position, end, target)\n",
             ORDER + "test_a_torn_tail_is_safe_elsewhere_before_it_is_cut"),
    Mutation("torn tail: copy's name not synced", "logd/repair.py",
             "    disk.sync_directory(quarantine)\n", "",
             ORDER + "test_a_torn_tail_is_safe_elsewhere_before_it_is_cut"),
    Mutation("torn tail: quarantine's name not synced", "logd/repair.py",
             "        disk.sync_directory(directory)\n", "",
             ORDER + "test_a_torn_tail_is_safe_elsewhere_before_it_is_cut"),
    Mutation("torn tail: not cut", "logd/repair.py",
             "    disk.cut(file, end)\n", "",
             OUT_OF_PLACE + "test_bytes_behind_the_end_are_cut_and_kept_aside"),
    Mutation("torn tail: cut not synced", "logd/repair.py",
             "    disk.cut(file, end)\n    disk.sync(file)\n", "    disk.cut(file, end)\n",
             ORDER + "test_a_torn_tail_is_safe_elsewhere_before_it_is_cut"),
    Mutation("failed write: not cut back", "logd/topic.py",
             "            self.active.truncate()\n", "",
             "tests/integration/faults/test_full_disk.py::test_a_refused_batch_leaves_nothing_behind"),
    Mutation("data directory: its name not synced", "logd/storage/disk.py",
             "        make_directory(path)\n        sync_directory(path.parent)\n",
             "        make_directory(path)\n",
             ORDER + "test_the_directories_above_are_on_disk_before_the_first_answer"),
    Mutation("recovery: batches from before a crash believed", "logd/repair.py",
             "header.offset >= epoch[0] and header.time_ms < epoch[1]", "False",
             "tests/unit/test_scan_partition.py"),
    # -- the forwarder
    Mutation("forward: checkpoints of a batch not announced", "logd/forward/forwarder.py",
             "        self._registry.pending = (self._output.last + 1, batch.checkpoints)\n", "",
             FORWARD_MODEL),
    Mutation("forward: new sources not saved", "logd/forward/forwarder.py",
             "        if changed:\n            self._save()\n", "",
             FORWARD_MODEL),
    Mutation("forward: what is known not saved at the start", "logd/forward/forwarder.py",
             "    state.save(lambda: registry.snapshot(found.last))\n", "",
             FORWARD_MODEL),
    Mutation("forward: bytes not compared after a read", "logd/forward/path_reader.py",
             "if source.state is FileState.current and not is_intact(source):", "if False:",
             FORWARD_FILES + "test_truncated_while_it_is_read"),
    Mutation("forward: oldest file's size taken first", "logd/forward/path_reader.py",
             "for source in reversed(self.queue)\n"
             "                if source.content is not None and not _is_empty(source)]",
             "for source in self.queue\n"
             "                if source.content is not None and not _is_empty(source)][::-1]",
             FORWARD_FILES + "test_a_program_that_changes_files_at_any_moment"),
    Mutation("forward: what was empty at the match_files is read", "logd/forward/path_reader.py",
             "not None and not _is_empty(source)]", "not None]",
             FORWARD_MODEL),
    Mutation("forward: what came since the match_files is believed", "logd/forward/path_reader.py",
             "if source.state is FileState.current and not _is_known(source, stamp):", "if False:",
             FORWARD_MODEL),
    Mutation("forward: a copy of what was truncated meanwhile", "logd/forward/file_content.py",
             "size, at = start.size(), 0",
             "size, at = min(start.size(), content.size()), 0",
             FORWARD_MODEL),
    Mutation("forward: first bytes of later than the size", "logd/forward/rotated_files.py",
             "min(stamp.size, FINGERPRINT_BYTES)", "FINGERPRINT_BYTES",
             FORWARD_MODEL),
    Mutation("forward: an empty file known by an inode used again", "logd/forward/file_matching.py",
             "if not entry.is_base and source.content is None and not source.is_known:",
             "if False:",
             FORWARD_FILES + "test_a_copy_with_the_inode_of_a_file_that_was_empty"),
    Mutation("forward: a new path with a reused inode is known", "logd/forward/file_matching.py",
             "        return any(is_same_file(entry, source) for source in sources)",
             "        return True",
             FORWARD_FILES + "test_a_new_path_whose_file_has_the_inode_of_a_file_of_another_path"),
    Mutation("forward: a copy is looked at before its original", "logd/forward/rotated_files.py",
             "for listed in sorted(chosen, key=lambda listed: listed.path != base):",
             "for listed in chosen:",
             FORWARD_FILES + "test_truncated_while_the_copy_was_looked_at_that_was_under_way"),
    Mutation("forward: names of rotated files are not checked", "logd/forward/path_reader.py",
             "        self._is_changed = True\n\n    @property", "        pass\n\n    @property",
             FORWARD_FILES + "test_a_file_of_its_own_with_the_name_of_a_rotated_one"),
    Mutation("forward: bytes before the position not compared", "logd/forward/file_matching.py",
             "return checksum_of(tail_at(entry.content, position)) == checksum",
             "return True",
             FORWARD_FILES + "test_generations_that_all_start_with_the_same_long_line"),
    Mutation("cursors: failed write not cut back", "logd/storage/cursors.py",
             "            disk.cut(file, self._size)\n", "            pass\n",
             "tests/unit/test_cursors.py"),
    Mutation("cursors: one behind the end stays there", "logd/storage/cursors.py",
             "next_ is not None and place.offset > next_", "False",
             CURSORS + "test_a_cursor_behind_the_end_goes_back_to_it"),
    # -- checks
    Mutation("header's sum not checked", "logd/batch.py",
             "    if xxh32_hexdigest(covered).encode() != head:\n        return None\n", "",
             "tests/unit/test_batch.py"),
    Mutation("body's sum not checked by the scanner", "logd/batch.py",
             " or body_sum(body) != header.sum", "",
             "tests/unit/test_batch.py"),
    Mutation("producer's sum not checked", "logd/service.py",
             "push.sum is not None and push.sum != sum_", "False",
             "tests/integration/protocol/test_wire.py"),
    Mutation("index entry's sum not checked", "logd/storage/index.py",
             "xxh3_64_intdigest(_FIELDS.pack(*entry)) != check", "False",
             "tests/unit/test_index.py"),
    Mutation("checkpoint's sum not checked", "logd/storage/checkpoint.py",
             "match is None or xxh3_64_hexdigest(match[1]).encode() != match[11]", "match is None",
             POSITION + "test_a_checkpoint_cut_or_flipped_anywhere"),
    Mutation("meta file's sum not checked", "logd/storage/recovery.py",
             'content.pop("sum") == meta_sum(content)', 'bool(content.pop("sum"))',
             POSITION + "test_a_meta_file_cut_or_flipped_anywhere"),
    Mutation("memory of producers: sum not checked", "logd/storage/producers.py",
             " or xxh3_64_digest(data[:-8]) != data[-8:]", "",
             "tests/unit/test_producers.py"),
    Mutation("cursors: a line's sum not checked", "logd/storage/cursors.py",
             "match is None or xxh3_64_hexdigest(match[1]).encode() != match[match.re.groups]",
             "match is None",
             CURSORS + "test_cut_or_flipped_anywhere"),
    Mutation("cursors: a name that is gone is told to be unknown", "logd/storage/cursors.py",
             "bool(lost) or len(cursors) < count", "False",
             CURSORS + "test_cut_or_flipped_anywhere"),
    Mutation("forwarder: says nothing about paths without files", "logd/forward/forwarder.py",
             "self._unmatched.changes(self._matched):", "():",
             "tests/unit/test_forward_paths.py::test_a_forwarder_says_what_it_waits_for"),
    # -- writers
    Mutation("unacked: the first on a connection not alone", "logd/client/unacked.py",
             "self.in_flight, self._alone, self._held = 0, True, False",
             "self.in_flight, self._held = 0, False",
             DELIVERY + "test_each_batch_is_stored_once_and_in_order"),
    Mutation("unacked: the first of a process not alone", "logd/client/unacked.py",
             "            if self.in_flight:\n                return None\n", "",
             UNACKED + "test_the_first_of_a_new_life_travels_alone"),
    Mutation("unacked: old name after a refused batch", "logd/client/unacked.py",
             "            self._rename()\n", "            pass\n",
             DELIVERY + "test_each_batch_is_stored_once_and_in_order"),
    Mutation("unacked: continues before all replies have arrived", "logd/client/unacked.py",
             "if self._held or self._outcome or", "if self._held or",
             UNACKED + "test_a_refusal_is_told_when_those_behind_it_are_answered_too"),
    Mutation("unacked: new names without end", "logd/client/unacked.py",
             "        if self._is_new_name:\n", "        if False:\n",
             UNACKED + "test_a_daemon_that_is_never_content_is_hopeless"),
    Mutation("unacked: removed before it is reported", "logd/client/unacked.py",
             "        self.settled(batch, pushed.offset)\n        self.size -= batch.size\n"
             "        del self._batches[0]\n",
             "        self.size -= batch.size\n        del self._batches[0]\n"
             "        self.settled(batch, pushed.offset)\n",
             WRITER + "test_a_signal_at_each_place"),
    Mutation("delivery: a loss reported again by its numbers", "logd/client/delivery.py",
             "                if not self._is_loss_reported:\n", "                if True:\n",
             DELIVERY + "test_a_loss_is_reported_once"),
    Mutation("delivery: a loss reported again on the next connection", "logd/client/delivery.py",
             "        self._identity, self._kept_up_to = identity, kept_up_to\n",
             "        self._identity = identity\n",
             DELIVERY + "test_a_loss_is_reported_once"),
    Mutation("delivery: a new process does not know where it begins", "logd/client/delivery.py",
             "first_own=1 if spool is None else spool.last + 1", "first_own=1",
             PARITY + "test_a_machine_that_forgot_its_newest_batches"),
    Mutation("delivery: patience begins with the machine", "logd/client/delivery.py",
             "self._progress_at_s = now_s  # when", "self._progress_at_s = 0.0  # when",
             DELIVERY + "test_patience_with_batches_in_a_spool_starts_with_the_writer"),
    Mutation("delivery: a pause that has ended is forgotten", "logd/client/delivery.py",
             "if self.retry_at_s > self._advanced_at_s else []", "if False else []",
             DELIVERY + "test_a_pause_that_ended_since_the_last_look_is_not_forgotten"),
    Mutation("spool: a small spool has large segments", "logd/client/spool.py",
             "min(SEGMENT_BYTES, max(1, limit_bytes // 8))", "SEGMENT_BYTES",
             PARITY + "test_a_small_spool_has_small_files"),
    Mutation("aio sender: a disk that is full ends it", "logd/client/aio/sender.py",
             "            except OSError as error:\n                self._delivery.disk_error",
             "            except KeyError as error:\n                self._delivery.disk_error",
             PARITY + "test_what_lingers_is_kept_when_the_disk_has_room_again"),
    Mutation("aio writer: flush waits for what comes later", "logd/client/aio/writer.py",
             "while not self._delivery.is_settled(last):", "while not self._delivery.is_done:",
             PARITY + "test_flush_waits_for_what_was_written_before_it"),
    Mutation("aio sender: appending leaves no turn for sending", "logd/client/aio/sender.py",
             "for _ in range(len(self._delivery.unspooled)):", "while self._delivery.unspooled:",
             AIO_WRITER + "test_batches_are_sent_while_others_are_synced"),
    Mutation("write buffer: emptied before it is queued", "logd/client/write_buffer.py",
             "        try:\n            self._delivery.add(batch, monotonic())\n        finally:\n"
             "            if batch.number:\n                del self._buffer[: batch.messages]\n",
             "        del self._buffer[: batch.messages]\n"
             "        try:\n            self._delivery.add(batch, monotonic())\n        finally:\n"
             "            if batch.number:\n",
             WRITER + "test_a_signal_anywhere_loses_and_doubles_nothing"),
    Mutation("sender: a signal leaves the connection in use", "logd/client/sender.py",
             "            self._disconnect(lost(self._delivery.address, "
             '"a signal interrupted it"))\n', "",
             WRITER + "test_a_signal_at_each_place"),
    Mutation("worker: does not look again after connecting", "logd/client/worker_thread.py",
             "not self.run_callbacks() and not self._is_turn_requested and",
             "not self.run_callbacks() and",
             WRITER + "test_what_is_written_during_a_connect_is_kept_after_it"),
    Mutation("worker: waiting threads wake it", "logd/client/worker_thread.py",
             "self.request_turn(math.inf)", "self.request_turn(0.0)",
             WRITER + "test_no_spinning_while_the_daemon_is_away"),
    Mutation("socket: continues after garbage", "logd/client/nonblocking_socket.py",
             "while self._end is None and self._receive():", "while self._receive():",
             NONBLOCKING + "test_nothing_is_believed_behind_garbage"),
    Mutation("spool: half a batch stays", "logd/client/spool.py",
             "            os.ftruncate(self._file, segment.size)\n", "",
             SPOOL + "test_a_full_disk_leaves_whole_batches"),
    Mutation("spool: batches not synced", "logd/client/spool.py",
             "                os.fdatasync(self._file)\n", "                pass\n",
             SPOOL + "test_with_fsync_each_batch_is_synced_before_it_counts"),
    Mutation("spool: a torn end is not cut", "logd/client/spool.py",
             "            os.truncate(segment.path, end)\n            segment.size = end\n", "",
             SPOOL + "test_a_kill_at_any_byte_of_the_newest_segment"),
    Mutation("spool: reading stays where a segment was", "logd/client/spool.py",
             "            self._reading = self._read_at = 0\n", "            pass\n",
             SPOOL + "test_reading_goes_on_though_the_segment_it_stood_in_went"),
    Mutation("spool: the newest note goes", "logd/client/spool.py",
             "filled = [segment for segment in self._segments if segment.size]",
             "filled = list(self._segments)",
             SPOOL + "test_the_newest_note_is_always_there"),
    Mutation("topic: a push passes the single message before it", "logd/topic.py",
             "if self.singles:  # one of them may have been sent before it on the same connection",
             "if False:",
             "tests/integration/protocol/test_singles.py::"
             "test_what_comes_behind_a_single_message_is_stored_behind_it"),
    Mutation("topic: a single message is written behind what a failed write left", "logd/topic.py",
             "self._acks_wait or self._tail_is_dirty", "self._acks_wait",
             SINGLE + "test_a_full_disk"),
    Mutation("topic: a single message is answered before it can be read", "logd/topic.py",
             "        self.readable.set_end(offset + 1, active.size)\n", "",
             SINGLE + "test_files_and_statistics_are_those_of_a_turn"),
    Mutation("small read: of a partition that has expired", "logd/storage/single_read.py",
             "if not readable.first <= offset < readable.next or",
             "if not offset < readable.next or",
             SMALL_READS + "test_offsets_outside_the_topic_are_left_to_the_usual_way"),
    Mutation("small read: a body is taken for a READ", "logd/protocol.py",
             "        self.repeatable = self.repeatable_read = None\n        begins",
             "        self.repeatable = None\n        begins",
             "tests/unit/test_small_read_sessions.py::test_every_split"),
    Mutation("small read: with the rights of another token", "logd/net/request_turns.py",
             "self.authorizer is None or self.authorizer.may_read(topic)", "True",
             "tests/unit/test_small_read_sessions.py::test_another_token_has_its_own_rights"),
    Mutation("follow: rights of the moment it was parsed", "logd/net/connection.py",
             "    if isinstance(checked, RefusedRequest):\n                    self._service",
             "    if False:\n                    self._service",
             "tests/unit/test_follow.py"
             "::test_rights_are_checked_again_when_the_start_was_read_from_the_disk"),
    Mutation("small read: of what is not synced", "logd/storage/single_read.py",
             "min(messages, readable.next - offset)", "min(messages, partition.next - offset)",
             SMALL_READS + "test_nothing_is_shown_before_it_is_synced"),
    Mutation("topic: with always, a file without a name is enough", "logd/storage/topic_sync.py",
             "        if not topic.active.is_in_place():\n            return lambda",
             "        if False:\n            return lambda",
             "tests/integration/daemon/test_lost_files.py::test_with_always_nothing_more_is_acknowledged"),
    # -- access control
    Mutation("authorizer: the fast path bypasses it", "logd/net/request_turns.py",
             "self.authorizer is None or push.topic in self.authorizer.pushed", "True",
             TOKENS + "test_the_same_push_over_and_over"),
    Mutation("authorizer: the fast path stays open after a reload", "logd/net/connection.py",
             "        self.remove_routes()\n        if not self.input", "        if not self.input",
             TOKENS + "test_the_same_push_over_and_over"),
    Mutation("authorizer: the fast path stays open for another token", "logd/net/request_turns.py",
             "if any(isinstance(request, Auth) for request in requests):", "if False:",
             TOKENS + "test_another_token_closes_the_short_ways_of_the_one_before"),
    Mutation("authorizer: a reload revokes nothing", "logd/access/authorization.py",
             "        self._grant = self._renewed(self._grant)\n", "",
             TOKENS + "test_a_reload_takes_tokens_away"),
    Mutation("authorizer: a reload does not check the queue", "logd/net/connection.py",
             "        if self.input.authorizer is None:\n            return\n", "        return\n",
             TOKENS + "test_a_reload_is_for_commands_that_wait_to_be_carried_out"),
    Mutation("authorizer: no token is required", "logd/access/authorization.py",
             '            raise Unauthorized("authenticate', '            return request or ("',
             TOKENS + "test_without_a_token_nothing_but_a_few_words"),
    Mutation("authorizer: unauthenticated bodies are kept", "logd/net/request_turns.py",
             "budget if self.is_authenticated else _NO_MEMORY", "budget",
             TOKENS + "test_strangers_take_no_memory_from_the_others"),
    Mutation("authorizer: unauthenticated connections stay open", "logd/net/connection.py",
             "        if not self.input.is_authenticated:\n            slow_s",
             "        if False:\n            slow_s",
             TOKENS + "test_who_says_nothing_is_shown_out"),
    Mutation("access: read implies write", "logd/access/access_file.py",
             'self._check("write", topic)', 'self._check("read", topic)',
             TOKENS + "test_what_each_may_do"),
    Mutation("access: every topic is listed", "logd/service.py",
             "if request.sees is None or request.sees(name)", "if True",
             TOKENS + "test_topics_that_one_may_not_see_are_not_listed"),
    Mutation("access: a wrong file is quoted", "logd/access/access_file.py",
             'f"{kind} in {where}: a token', 'f"{value} {kind} in {where}: a token',
             TOKENS + "test_a_wrong_access_file_is_refused_without_telling"),
    Mutation("HTTP: no token is asked for", "logd/http.py",
             "if access is not None and scope", "if False and scope",
             TOKENS + "test_without_a_token_nothing_over_http"),
    Mutation("HTTP: rights are not looked at", "logd/web/async_service.py",
             "return request if self._grant is None else self._grant.admit(request)",
             "return request",
             TOKENS + "test_what_each_may_do_over_http"),
    Mutation("TLS: clients need no certificate", "logd/net/tls.py",
             "context.verify_mode = ssl.CERT_REQUIRED", "context.verify_mode = ssl.CERT_NONE",
             TLS + "test_clients_must_have_a_certificate"),
    Mutation("TLS: old versions are taken", "logd/net/tls.py",
             "    context.minimum_version = ssl.TLSVersion.TLSv1_2\n",
             "    context.minimum_version = ssl.TLSVersion.TLSv1\n"
             "    context.set_ciphers('ALL:@SECLEVEL=0')\n",
             TLS + "test_old_versions_are_refused"),
    Mutation("TLS: the daemon's name is not checked", "logd/client/tls_socket.py",
             "    context.sslsocket_class = TlsSocket\n",
             "    context.sslsocket_class = TlsSocket\n    context.check_hostname = False\n",
             TLS + "test_a_wrong_certificate_is_not_trusted"),
    Mutation("TLS: the old certificate stays", "logd/tcp.py",
             "            self.tls.current = context\n", "",
             TLS + "test_a_reload_takes_the_new_certificate"),
    Mutation("TLS: replies are not held back", "logd/net/large_replies.py",
             "                    await self._writable.wait()\n", "",
             TLS + "test_replies_that_nobody_takes"),
    Mutation("listeners: open without authentication", "logd/tcp.py",
             "        _check_exposed(config)\n", "",
             LISTENERS + "test_other_machines_are_not_let_in_unasked"),
    Mutation("listeners: addresses are not counted", "logd/access/connection_limits.py",
             "if most and self._by_network", "if False and self._by_network",
             LISTENERS + "test_connections_per_address"),
    Mutation("listeners: a full disk is written to", "logd/topic.py",
             "        if not self.has_room:\n", "        if False:\n",
             LISTENERS + "test_pushes_are_refused_before_the_disk_is_full"),
    Mutation("listeners: half of a wrong reload is taken", "logd/server.py",
             "            config = wanted.keeping_fixed(self._config)\n",
             "            config = wanted\n",
             LISTENERS + "test_a_reload_takes_what_can_change_and_says_what_cannot"),
    # -- the archive
    Mutation("archive: file not synced before its name", "logd/archive/object_stores.py",
             "        disk.sync(disk.File(draft))\n", "",
             HOOK + "test_what_a_commit_names_is_on_disk_before_it"),
    Mutation("archive: directories not synced", "logd/archive/object_stores.py",
             "            disk.sync_directory(directory)\n", "            pass\n",
             HOOK + "test_what_a_commit_names_is_on_disk_before_it"),
    Mutation("archive: only the nearest directory synced", "logd/archive/object_stores.py",
             "            if directory == self._root:\n", "            if directory:\n",
             HOOK + "test_directories_of_a_run_that_was_killed_before_it_synced_them"),
    Mutation("archive: a commit in the place of another", "logd/archive/object_stores.py",
             "os.link(draft, target)", "os.rename(draft, target) or draft.touch()",
             MANIFEST + "test_side_by_side_every_commit_is_kept"),
    Mutation("archive: offsets twice", "logd/archive/manifest.py",
             "if twice or intersect(kept.covered(topic_id), new):", "if twice:",
             MANIFEST + "test_no_offset_counts_twice"),
    Mutation("archive hook: files not looked at", "logd/archive/partition_file.py",
             "        _verify(store, state, source, range_)\n", "",
             HOOK + "test_a_partition_goes_only_if_its_files_are_really_there"),
    Mutation("archive hook: a short file is enough", "logd/archive/partition_file.py",
             "    if at != range_.next:\n", "    if False:\n",
             HOOK + "test_a_file_that_is_not_sound_is_not_taken_for_archived"),
]  # fmt: skip


def main() -> None:
    wanted = [m for m in MUTATIONS if not sys.argv[1:] or sys.argv[1] in m.name]
    with tempfile.TemporaryDirectory() as name:
        tree = copy_tree(Path(name) / "logd", native=True)
        sound = {test: passes(tree, test) for test in sorted({m.test for m in wanted})}
        survivors = [m.name for m in wanted if not (sound[m.test] and is_noticed(tree, m))]
    print(f"\n{len(wanted) - len(survivors)} of {len(wanted)} mutations were noticed")
    for name in survivors:
        print(f"not noticed: {name}")
    sys.exit(bool(survivors))


def passes(tree: Path, test: str) -> bool:
    """Run one test in the copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", test]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment(tree), capture_output=True, timeout=300
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def is_noticed(tree: Path, mutation: Mutation) -> bool:
    path = tree / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        print(f"STALE    {mutation.name}: {mutation.file} has it {text.count(mutation.old)} times")
        return False
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        noticed = not passes(tree, mutation.test)
    finally:
        path.write_text(text)
    print(f"{'noticed ' if noticed else 'SURVIVED'} {mutation.name}: {mutation.test}", flush=True)
    return noticed


if __name__ == "__main__":
    main()
