-- A row for each resource, with the largest token that has written.
CREATE TABLE fence (resource text PRIMARY KEY, token bigint NOT NULL);

-- Locks that row until the end of the transaction: compare and write are one step. The first token of a resource
-- makes its row.
CREATE FUNCTION fence_enter(wanted text, mine bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF mine IS NULL THEN
        RAISE EXCEPTION 'no fencing token for %', wanted USING ERRCODE = 'RL412';
    END IF;
    INSERT INTO fence AS known VALUES (wanted, mine)
        ON CONFLICT (resource) DO UPDATE SET token = mine WHERE known.token <= mine;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stale fencing token % for %', mine, wanted USING ERRCODE = 'RL412';
    END IF;
END $$;

-- Guards every write of a table, whatever program makes it:
-- CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON mine
--     FOR EACH STATEMENT EXECUTE FUNCTION fence_guard('RESOURCE');
CREATE FUNCTION fence_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence_enter(TG_ARGV[0], nullif(current_setting('rowlock.token', true), '')::bigint);
    RETURN NULL;
END $$;
