START TRANSACTION;
CALL fence_enter('report', @token);
UPDATE report SET body = @body WHERE id = 1;
COMMIT;
