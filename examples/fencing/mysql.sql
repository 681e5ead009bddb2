-- A row for each resource, with the largest token that has written.
CREATE TABLE fence (resource VARCHAR(200) PRIMARY KEY, token BIGINT UNSIGNED NOT NULL) ENGINE = InnoDB;
CREATE TABLE report (id INT PRIMARY KEY, body TEXT NOT NULL) ENGINE = InnoDB;
CREATE TABLE guarded (id INT PRIMARY KEY, body TEXT NOT NULL) ENGINE = InnoDB;
INSERT INTO fence VALUES ('report', 0), ('guarded', 0);
INSERT INTO report VALUES (1, '');
INSERT INTO guarded VALUES (1, '');

DELIMITER //

-- Locks that row until the end of the transaction: compare and write are one step. The rows that an UPDATE has
-- changed say less here: MySQL does not count one that was set to what it was.
CREATE PROCEDURE fence_enter(wanted VARCHAR(200), mine BIGINT UNSIGNED)
BEGIN
    DECLARE seen BIGINT UNSIGNED;
    SELECT token INTO seen FROM fence WHERE resource = wanted FOR UPDATE;
    IF mine IS NULL OR seen IS NULL OR mine < seen THEN
        SIGNAL SQLSTATE '45412' SET MESSAGE_TEXT = 'stale fencing token';
    END IF;
    UPDATE fence SET token = mine WHERE resource = wanted;
END//

-- Guards every write of a table, whatever program makes it.
CREATE TRIGGER fenced_insert BEFORE INSERT ON guarded FOR EACH ROW CALL fence_enter('guarded', @fencing_token)//
CREATE TRIGGER fenced_update BEFORE UPDATE ON guarded FOR EACH ROW CALL fence_enter('guarded', @fencing_token)//
CREATE TRIGGER fenced_delete BEFORE DELETE ON guarded FOR EACH ROW CALL fence_enter('guarded', @fencing_token)//

DELIMITER ;
