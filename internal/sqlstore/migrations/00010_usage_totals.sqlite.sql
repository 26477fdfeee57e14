-- +goose Up

-- Sums of tts_usage per day and value of one property (provider, voice, model or
-- endpoint), and with the property '' per day. Triggers maintain them, so that the usage
-- that older servers add is in them too. The key of a row in tts_usage never changes.
CREATE TABLE usage_totals (
    team_id           TEXT   NOT NULL,
    property          TEXT   NOT NULL,
    day               TEXT   NOT NULL,
    value             TEXT   NOT NULL,
    characters        BIGINT NOT NULL,
    cached_characters BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    PRIMARY KEY (team_id, property, day, value)
) WITHOUT ROWID;

-- +goose StatementBegin
CREATE TRIGGER tts_usage_inserted AFTER INSERT ON tts_usage BEGIN
    INSERT INTO usage_totals (team_id, property, day, value, characters, cached_characters, requests) VALUES
        (NEW.team_id, '', NEW.day, '', NEW.characters, NEW.cached_characters, NEW.requests),
        (NEW.team_id, 'provider', NEW.day, NEW.provider, NEW.characters, NEW.cached_characters, NEW.requests),
        (NEW.team_id, 'voice', NEW.day, NEW.voice, NEW.characters, NEW.cached_characters, NEW.requests),
        (NEW.team_id, 'model', NEW.day, NEW.model, NEW.characters, NEW.cached_characters, NEW.requests),
        (NEW.team_id, 'endpoint', NEW.day, NEW.endpoint_id, NEW.characters, NEW.cached_characters, NEW.requests)
    ON CONFLICT (team_id, property, day, value) DO UPDATE SET
        characters = usage_totals.characters + excluded.characters,
        cached_characters = usage_totals.cached_characters + excluded.cached_characters,
        requests = usage_totals.requests + excluded.requests;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER tts_usage_updated AFTER UPDATE ON tts_usage BEGIN
    INSERT INTO usage_totals (team_id, property, day, value, characters, cached_characters, requests) VALUES
        (NEW.team_id, '', NEW.day, '', NEW.characters - OLD.characters, NEW.cached_characters - OLD.cached_characters, NEW.requests - OLD.requests),
        (NEW.team_id, 'provider', NEW.day, NEW.provider, NEW.characters - OLD.characters, NEW.cached_characters - OLD.cached_characters, NEW.requests - OLD.requests),
        (NEW.team_id, 'voice', NEW.day, NEW.voice, NEW.characters - OLD.characters, NEW.cached_characters - OLD.cached_characters, NEW.requests - OLD.requests),
        (NEW.team_id, 'model', NEW.day, NEW.model, NEW.characters - OLD.characters, NEW.cached_characters - OLD.cached_characters, NEW.requests - OLD.requests),
        (NEW.team_id, 'endpoint', NEW.day, NEW.endpoint_id, NEW.characters - OLD.characters, NEW.cached_characters - OLD.cached_characters, NEW.requests - OLD.requests)
    ON CONFLICT (team_id, property, day, value) DO UPDATE SET
        characters = usage_totals.characters + excluded.characters,
        cached_characters = usage_totals.cached_characters + excluded.cached_characters,
        requests = usage_totals.requests + excluded.requests;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER tts_usage_deleted AFTER DELETE ON tts_usage BEGIN
    INSERT INTO usage_totals (team_id, property, day, value, characters, cached_characters, requests) VALUES
        (OLD.team_id, '', OLD.day, '', -OLD.characters, -OLD.cached_characters, -OLD.requests),
        (OLD.team_id, 'provider', OLD.day, OLD.provider, -OLD.characters, -OLD.cached_characters, -OLD.requests),
        (OLD.team_id, 'voice', OLD.day, OLD.voice, -OLD.characters, -OLD.cached_characters, -OLD.requests),
        (OLD.team_id, 'model', OLD.day, OLD.model, -OLD.characters, -OLD.cached_characters, -OLD.requests),
        (OLD.team_id, 'endpoint', OLD.day, OLD.endpoint_id, -OLD.characters, -OLD.cached_characters, -OLD.requests)
    ON CONFLICT (team_id, property, day, value) DO UPDATE SET
        characters = usage_totals.characters + excluded.characters,
        cached_characters = usage_totals.cached_characters + excluded.cached_characters,
        requests = usage_totals.requests + excluded.requests;
END;
-- +goose StatementEnd

INSERT INTO usage_totals SELECT team_id, '', day, '', SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day;
INSERT INTO usage_totals SELECT team_id, 'provider', day, provider, SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day, provider;
INSERT INTO usage_totals SELECT team_id, 'voice', day, voice, SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day, voice;
INSERT INTO usage_totals SELECT team_id, 'model', day, model, SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day, model;
INSERT INTO usage_totals SELECT team_id, 'endpoint', day, endpoint_id, SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day, endpoint_id;
