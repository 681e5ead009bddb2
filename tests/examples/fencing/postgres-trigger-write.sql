BEGIN;
SET LOCAL rowlock.token = :'token';
UPDATE guarded SET body = :'body' WHERE id = 1;
COMMIT;
