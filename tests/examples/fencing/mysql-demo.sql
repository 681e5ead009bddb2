-- Tables of the drill, behind mysql.sql: one that its writers fence, and one with triggers.
CREATE TABLE report (id INT PRIMARY KEY, body TEXT NOT NULL) ENGINE = InnoDB;
CREATE TABLE guarded (id INT PRIMARY KEY, body TEXT NOT NULL) ENGINE = InnoDB;
INSERT INTO report VALUES (1, '');
INSERT INTO guarded VALUES (1, '');

-- Guards every write of a table, whatever program makes it.
CREATE TRIGGER fenced_insert BEFORE INSERT ON guarded FOR EACH ROW CALL fence_enter('guarded', @fencing_token);
CREATE TRIGGER fenced_update BEFORE UPDATE ON guarded FOR EACH ROW CALL fence_enter('guarded', @fencing_token);
CREATE TRIGGER fenced_delete BEFORE DELETE ON guarded FOR EACH ROW CALL fence_enter('guarded', @fencing_token);
