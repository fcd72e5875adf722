-- What a fresh 2.6.0 did, in its working directory, for the files beside this one: `tarantool scenario.lua`, then gzip -9n.
box.cfg{log = 'tarantool.log', checkpoint_count = 10, replication_synchro_quorum = 1}
local function space(name, options)
    local made = box.schema.space.create(name, options)
    made:create_index('primary')
    return made
end
local rows, hidden = space('rows'), space('hidden', {is_local = true})
local passing, certain = space('passing', {temporary = true}), space('certain', {is_sync = true})
local vinyl = space('vinyl', {engine = 'vinyl'})
rows:insert{1, 'a'} hidden:insert{1, 'a'} vinyl:insert{1, 'a'} passing:insert{1}
box.begin() rows:insert{2} hidden:insert{2} rows:insert{3} box.commit() -- a local row in the middle
box.begin() rows:insert{4} rows:insert{5} hidden:insert{3} box.commit() -- at the end: a NOP is added
box.begin() hidden:insert{4} rows:insert{6} box.commit() -- at the beginning
box.begin() hidden:insert{5} hidden:insert{6} box.commit() -- nothing else
box.begin() hidden:insert{7} rows:insert{7} hidden:insert{8} box.commit()
certain:insert{1} -- and its CONFIRM
box.begin() certain:insert{2} rows:insert{8} box.commit()
local function keep(old) return old end
rows:before_replace(keep)
rows:replace{1, 'b'} -- a NOP
rows:before_replace(nil, keep)
box.begin() for id = 100, 400 do rows:insert{id, string.rep('x', 20)} end box.commit() -- a compressed block
rows:truncate()
rows:insert{1}
hidden:insert{77}
box.snapshot()
rows:insert{50}
box.snapshot()
box.snapshot()
rows:insert{51, require('digest').urandom(300)}
rows:upsert({51, 'c'}, {{'=', 2, 'd'}})
os.exit(0)
