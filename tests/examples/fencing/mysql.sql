-- A row for each resource, with the largest token that has written.
CREATE TABLE fence (resource VARCHAR(200) PRIMARY KEY, token BIGINT UNSIGNED NOT NULL) ENGINE = InnoDB;

DELIMITER //

-- Locks that row until the end of the transaction: compare and write are one step. The first token of a resource
-- makes its row. The rows that a statement has changed say less here: MySQL does not count one that was set to what
-- it was.
CREATE PROCEDURE fence_enter(wanted VARCHAR(200), mine BIGINT UNSIGNED)
BEGIN
    DECLARE seen BIGINT UNSIGNED;
    IF mine IS NULL THEN
        SIGNAL SQLSTATE '45412' SET MESSAGE_TEXT = 'stale fencing token: there is none';
    END IF;
    INSERT INTO fence VALUES (wanted, mine) ON DUPLICATE KEY UPDATE token = GREATEST(token, mine);
    SELECT token INTO seen FROM fence WHERE resource = wanted FOR UPDATE;
    IF mine < seen THEN
        SIGNAL SQLSTATE '45412' SET MESSAGE_TEXT = 'stale fencing token';
    END IF;
END//

DELIMITER ;
