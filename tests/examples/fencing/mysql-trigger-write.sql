START TRANSACTION;
SET @fencing_token = @token;
UPDATE guarded SET body = @body WHERE id = 1;
COMMIT;
SET @fencing_token = NULL; -- the connection may go back to a pool
