-- A random workload over spaces of every kind. Each fiber has a generator of its own, so what it does follows from its seed;
-- in which order the fibers' changes come is the server's affair, and the log's.
local bit = require('bit')
local decimal = require('decimal')
local ffi = require('ffi')
local fiber = require('fiber')
local uuid = require('uuid')

local workload = {stats = {}, errors = {}, running = 0, stopping = false}

-- A number from 0 to n - 1. Products stay below 2^53.
local function generator(seed)
    local state = seed % 2147483646 + 1
    return function(n)
        state = state * 16807 % 2147483647
        return state % n
    end
end

local function double(x) return ffi.cast('double', x) end

local function text(random)
    local kinds = {
        'plain ' .. random(1000), '', 'Größe 東京 🚀 ' .. random(10), 'quote " \\ \n \t \0 end', string.rep('long ', random(200)),
    }
    return kinds[random(#kinds) + 1]
end

local function bytes(random) -- never UTF-8
    local chars = {'\xff'}
    for i = 1, random(20) do chars[i + 1] = string.char(random(256)) end
    return table.concat(chars)
end

local function some_decimal(random)
    local kinds = {'0.000', '-12345678901234567890.123456789', '99999999999999999999999999999999999999', '1e-20', '-0.5', '7'}
    return decimal.new(kinds[random(#kinds) + 1])
end

local function some_uuid(random)
    return uuid.fromstr(string.format('%08x-%04x-4%03x-8%03x-%012x',
        random(2147483646), random(65536), random(4096), random(4096), random(2147483646)))
end

local function anything(random, depth)
    local kind = random(depth > 0 and 19 or 15)
    if kind == 0 then return box.NULL end
    if kind == 1 then return random(2) == 1 end
    if kind == 2 then return random(1000) end
    if kind == 3 then return -9223372036854775807LL - 1 end
    if kind == 4 then return 18446744073709551615ULL end
    if kind == 5 then return 9007199254740993LL + random(5) end
    if kind == 6 then return double(-0.0) end
    if kind == 7 then return double(0 / 0) end
    if kind == 8 then return double(random(2) == 0 and math.huge or -math.huge) end
    if kind == 9 then return double(random(100)) end
    if kind == 10 then return random(100000) / 7 * 10 ^ (random(40) - 20) end
    if kind == 11 then return some_decimal(random) end
    if kind == 12 then return some_uuid(random) end
    if kind == 13 then return text(random) end
    if kind == 14 then return bytes(random) end
    local value = {}
    if kind == 15 or kind == 16 then
        for i = 1, random(4) do value[i] = anything(random, depth - 1) end
        return setmetatable(value, {__serialize = 'seq'})
    end
    if kind == 17 then
        for _ = 1, random(4) do value[text(random)] = anything(random, depth - 1) end
    else -- keys that aren't strings, and sometimes one that is the same in JSON
        value[random(5) + 1] = anything(random, depth - 1)
        value[-3] = anything(random, depth - 1)
        if random(2) == 0 then value['-3'] = 'the same name' end
    end
    return setmetatable(value, {__serialize = 'map'})
end

local function a_map(random)
    return setmetatable({count = random(100), list = setmetatable({1, random(9), 'x'}, {__serialize = 'seq'}),
        inner = setmetatable({deep = text(random)}, {__serialize = 'map'})}, {__serialize = 'map'})
end

local ACCOUNT = {
    {'id', 'unsigned'}, {'name', 'string'}, {'balance', 'integer'}, {'flags', 'unsigned'},
    {name = 'ratio', type = 'number', is_nullable = true}, {name = 'note', type = 'string', is_nullable = true},
}

local function account(random, id)
    local row = {id, text(random), random(2000) - 1000, random(65536)}
    local extra = random(4)
    if extra > 0 then row[5] = random(3) == 0 and box.NULL or double(random(1000) / 8) end
    if extra > 1 then row[6] = random(3) == 0 and box.NULL or 'note' .. random(100) end
    if extra > 2 then row[7] = anything(random, 1) end -- past the format
    return row
end

local function some_accounts(space)
    local function insert(random, id) return space():insert(account(random, id)) end
    local function operations(random)
        local choices = {
            {'=', 'name', text(random)}, {'+', 'balance', random(100)}, {'-', 3, random(100)}, {'=', 5, double(1.5)},
            {'&', 'flags', random(65536)}, {'|', 4, random(65536)}, {'^', 4, random(65536)}, {'=', 6, 'set'},
            {':', 2, 1, random(3), 'xyz'}, {'!', 7, 'inserted'}, {'#', 7, 1}, {'=', -1, 5}, {'+', 5, 0.25}, {'=', 'note', box.NULL},
        }
        local found, fields = {}, {}
        for _ = 1, random(3) + 1 do
            local choice = choices[random(#choices) + 1]
            if fields[choice[2]] == nil then -- one field twice is refused at times
                fields[choice[2]] = true
                table.insert(found, choice)
            end
        end
        return found
    end
    return {
        insert = insert,
        replace = function(random, id) return space():replace(account(random, id)) end,
        update = function(random, id) return space():update(id, operations(random)) end,
        delete = function(random, id) return space():delete(id) end,
        upsert = function(random, id)
            return space():upsert(account(random, id), {{'+', 'balance', random(10)}, {'=', 'name', 'upserted'}})
        end,
    }
end

-- What there is to do, by space: each is given a generator and a small number that says which row.
local actions = {}

actions.accounts = some_accounts(function() return box.space.accounts end)
actions.accounts.by_another_index = function(random)
    local index = box.space.accounts.index.by_balance
    local row = index:min() -- the log has the primary key all the same
    if random(2) == 0 then return index:delete{row[3], row[1]} end
    return index:update({row[3], row[1]}, {{'+', 'balance', 10}})
end
actions.accounts.upsert_in_part = function(random, id) -- the second operation fits no row, and is passed over
    return box.space.accounts:upsert({id, 'new', 0, 0}, {{'+', 'balance', 1}, {'+', 'name', 1}})
end

actions.vinyl = some_accounts(function() return box.space.vinyl end)

actions.bare = {
    replace = function(random, id)
        local row = {id, random(100), random(100)}
        for i = 1, random(6) do row[i + 3] = anything(random, 2) end
        return box.space.bare:replace(row)
    end,
    update = function(random, id)
        return box.space.bare:update(id, {{'+', 2, random(5)}, {'!', random(3) + 3, anything(random, 1)}, {'=', -1, 'last'}})
    end,
    cut = function(random, id) return box.space.bare:update(id, {{'#', 4, random(3) + 1}}) end,
    delete = function(_, id) return box.space.bare:delete(id) end,
}

actions.pairs = { -- the key's parts in another order than the fields
    replace = function(random, id) return box.space.pairs:replace{text(random), id % 7, 'k' .. id % 11, anything(random, 1)} end,
    update = function(random, id) return box.space.pairs:update({'k' .. id % 11, id % 7}, {{'=', 1, 'u' .. random(9)}}) end,
    delete = function(_, id) return box.space.pairs:delete{'k' .. id % 11, id % 7} end,
}

actions.kinds = {
    replace = function(random, id)
        return box.space.kinds:replace{
            id, some_decimal(random), some_uuid(random), double(random(100) / 3), a_map(random), {1, random(5), {2}},
            random(2) == 0, anything(random, 2), random(3) == 0 and bytes(random) or text(random),
        }
    end,
    update_inside = function(random, id)
        return box.space.kinds:update(id, {
            {'+', 'document.count', random(10)}, {'=', 'document.inner.deep', text(random)}, {'!', 'document.list[1]', 'first'},
        })
    end,
    update_array = function(random, id)
        return box.space.kinds:update(id, {{'=', 'list[2]', random(100)}, {'+', 2, decimal.new('0.25')}})
    end,
    delete_inside = function(_, id) return box.space.kinds:update(id, {{'#', 'document.count', 1}}) end,
    delete = function(_, id) return box.space.kinds:delete(id) end,
}

actions.binary = { -- only SQL writes varbinary from inside the server
    replace = function(random, id)
        return assert(box.execute(
            string.format([[REPLACE INTO "binary" VALUES (%d, x'%02xff00%02x')]], id, random(256), random(256))))
    end,
    delete = function(_, id) return box.space.binary:delete(id) end,
}

actions.texts = { -- keys that aren't UTF-8
    replace = function(random, id) return box.space.texts:replace{id % 2 == 0 and '\xfe' .. id or 'key ' .. id, text(random)} end,
    delete = function(_, id) return box.space.texts:delete{id % 2 == 0 and '\xfe' .. id or 'key ' .. id} end,
}

actions.ids = {
    replace = function(random) return box.space.ids:replace{some_uuid(random), text(random)} end,
}

actions.counted = { -- a sequence writes to a system space in the same transaction
    insert = function(random) return box.space.counted:insert{box.NULL, text(random)} end,
}

actions.guarded = { -- before_replace makes NOPs of every third change, and others into something else
    replace = function(random, id) return box.space.guarded:replace{id, random(1000)} end,
    delete = function(_, id) return box.space.guarded:delete(id) end,
}

actions.hidden = {
    replace = function(random, id) return box.space.hidden:replace{id, random(1000)} end,
    delete = function(_, id) return box.space.hidden:delete(id) end,
}

actions.morph = { -- whatever its format is at the moment
    replace = function(random, id)
        local row = {id}
        for place = 2, #box.space.morph:format() do row[place] = place % 2 == 0 and random(100) or 's' .. random(100) end
        row[#row + 1] = random(2) == 0 and 'past the format' or nil
        return box.space.morph:replace(row)
    end,
    update = function(random, id) return box.space.morph:update(id, {{'=', #box.space.morph:format() + 1, random(9)}}) end,
    delete = function(_, id) return box.space.morph:delete(id) end,
}

actions.emptied = {
    replace = function(random, id) return box.space.emptied:replace{id, random(1000)} end,
}

local names = {}
for name in pairs(actions) do table.insert(names, name) end
table.sort(names)
local kinds = {}
for name, of_space in pairs(actions) do
    kinds[name] = {}
    for kind in pairs(of_space) do table.insert(kinds[name], kind) end
    table.sort(kinds[name])
end

local function count(what) workload.stats[what] = (workload.stats[what] or 0) + 1 end

local function try(what, func, ...)
    local ok, result = pcall(func, ...)
    if ok then
        count(what)
    else
        local message = what .. ': ' .. tostring(result)
        workload.errors[message] = (workload.errors[message] or 0) + 1
    end
    return ok
end

local function act(random, row_count, without)
    local name = names[random(#names) + 1]
    while without[name] do name = names[random(#names) + 1] end
    local kind = kinds[name][random(#kinds[name]) + 1]
    try(name .. '.' .. kind, actions[name][kind], random, random(row_count))
end

local NOT_TOGETHER = {vinyl = true, binary = true} -- engines don't share a transaction; SQL has its own idea of one

local function transaction(random, options)
    local size = random(20) == 0 and random(options.rows_max) or random(12)
    box.begin()
    for _ = 0, size do act(random, options.row_count, NOT_TOGETHER) end
    if random(8) == 0 then
        box.rollback()
    elseif try('transaction', box.commit) and size > 100 then
        count('large transaction')
    end
end

local SURE = {'replace', 'delete', 'upsert'} -- a statement that fails in a vinyl transaction can crash 2.6

local function vinyl_transaction(random, options)
    box.begin()
    for _ = 0, random(6) do
        local kind = SURE[random(#SURE) + 1]
        try('vinyl.' .. kind, actions.vinyl[kind], random, random(options.row_count))
    end
    if box.is_in_txn() then try('vinyl transaction', box.commit) end
end

local function work(seed, options)
    local random = generator(seed)
    local done = 0
    while not workload.stopping and (options.steps == nil or done < options.steps) do
        local choice = random(20)
        if choice == 0 then
            transaction(random, options)
        elseif choice == 1 then
            vinyl_transaction(random, options)
        else
            act(random, options.row_count, {})
        end
        if box.is_in_txn() then box.rollback() end
        done = done + 1
        fiber.sleep(options.pause)
    end
end

-- DDL, in a fiber of its own.
local schema = {
    truncate = function() box.space.emptied:truncate() end,
    truncate_with_rows = function(random)
        for id = 1, 5 do box.space.emptied:replace{id, random(100)} end
        box.space.emptied:truncate()
        box.space.emptied:replace{1, random(100)}
    end,
    more_format = function(random)
        local format = box.space.morph:format()
        if #format < 6 then
            table.insert(format, {name = 'f' .. #format + 1 .. '_' .. random(10), type = 'any', is_nullable = true})
            box.space.morph:format(format)
        end
    end,
    less_format = function()
        local format = box.space.morph:format()
        if #format > 2 then
            table.remove(format)
            box.space.morph:format(format)
        end
    end,
    other_names = function(random)
        local format = box.space.morph:format()
        format[#format].name = 'renamed_' .. random(10)
        format[1].name = 'id' .. random(3)
        box.space.morph:format(format)
    end,
    rename = function(random)
        local space = box.space.wanderer or box.space.wanderer_away
        space:rename(space.name == 'wanderer' and 'wanderer_away' or 'wanderer')
        space:replace{random(10), space.name}
    end,
    create = function(random)
        local name = 'made_' .. random(5)
        if box.space[name] == nil then
            box.schema.space.create(name, {engine = random(3) == 0 and 'vinyl' or 'memtx'})
            box.space[name]:create_index('primary', {parts = {1, 'unsigned'}})
            for id = 1, random(20) do box.space[name]:replace{id, text(random)} end
        end
    end,
    create_at_once = function(random) -- DDL and rows in one transaction
        local name = 'made_' .. random(5)
        if box.space[name] == nil then
            box.begin()
            box.schema.space.create(name, {format = {{'id', 'unsigned'}, {'value', 'any'}}})
            box.space[name]:create_index('primary')
            for id = 1, random(20) + 1 do box.space[name]:replace{id, text(random)} end
            box.commit()
        end
    end,
    drop = function(random)
        local name = 'made_' .. random(5)
        if box.space[name] ~= nil then box.space[name]:drop() end
    end,
    secondary_index = function() -- of a small space: where building one has to yield, 2.6.0 crashes now and then
        if box.space.emptied.index.by_number == nil then
            box.space.emptied:create_index('by_number', {parts = {2, 'unsigned'}, unique = false})
        else
            box.space.emptied.index.by_number:drop()
        end
    end,
    user = function(random)
        box.schema.user.create('somebody' .. random(3), {if_not_exists = true})
        box.schema.user.grant('somebody' .. random(3), 'read', 'space', 'accounts', {if_not_exists = true})
    end,
}
local schema_kinds = {}
for kind in pairs(schema) do table.insert(schema_kinds, kind) end
table.sort(schema_kinds)

local function alter(seed, options)
    local random = generator(seed)
    local done = 0
    while not workload.stopping and (options.steps == nil or done < options.steps / 10) do
        local kind = schema_kinds[random(#schema_kinds) + 1]
        try('schema.' .. kind, schema[kind], random)
        if box.is_in_txn() then box.rollback() end
        done = done + 1
        fiber.sleep(options.pause * 10)
    end
end

local function large(seed, options)
    local random = generator(seed)
    local done = 0
    while not workload.stopping and (options.steps == nil or done < options.steps / 100) do
        local id, size = random(10), (random(9) + 1) * 100 * 1000
        try('blobs.replace', function() return box.space.blobs:replace{id, string.rep(string.char(97 + random(26)), size)} end)
        if random(3) == 0 then try('blobs.delete', function() return box.space.blobs:delete(random(10)) end) end
        done = done + 1
        fiber.sleep(options.pause * 100)
    end
end

function workload.create()
    local function space(name, options, index)
        local made = box.schema.space.create(name, options)
        made:create_index('primary', index)
        return made
    end
    local accounts = space('accounts', {format = ACCOUNT})
    accounts:create_index('by_balance', {parts = {'balance', 'id'}})
    accounts:create_index('by_ratio', {parts = {{field = 'ratio', is_nullable = true}, {field = 'id'}}})
    local vinyl = space('vinyl', {engine = 'vinyl', format = ACCOUNT})
    vinyl:create_index('by_balance', {parts = {'balance', 'id'}})
    space('bare')
    space('pairs', {format = {{'label', 'string'}, {'b', 'unsigned'}, {'a', 'string'}, {name = 'c', is_nullable = true}}},
        {parts = {'a', 'b'}})
    space('kinds', {format = {{'id', 'unsigned'}, {'money', 'decimal'}, {'uuid', 'uuid'}, {'ratio', 'double'}, {'document', 'map'},
        {'list', 'array'}, {'flag', 'boolean'}, {name = 'thing', type = 'any', is_nullable = true}, {'word', 'string'}}})
    assert(box.execute('CREATE TABLE "binary" ("id" INTEGER PRIMARY KEY, "data" VARBINARY)'))
    space('texts', {}, {parts = {1, 'string'}})
    space('ids', {format = {{'id', 'uuid'}, {'word', 'string'}}})
    space('counted', {}, {sequence = true})
    space('guarded', {format = {{'id', 'unsigned'}, {'value', 'unsigned'}}})
    space('hidden', {is_local = true})
    space('passing', {temporary = true})
    space('morph', {format = {{'id', 'unsigned'}, {name = 'f2', type = 'any', is_nullable = true}}})
    space('emptied')
    space('wanderer', {format = {{'id', 'unsigned'}}})
    space('blobs')
    space('idle')
end

-- Triggers don't outlive the process.
local function guard()
    box.space.guarded:before_replace(function(old, new)
        local id = (new or old)[1]
        if id % 3 == 0 then return old end
        if new ~= nil and id % 3 == 1 then return new:update{{'=', 2, new[2] + 1}} end
        return new
    end)
end

function workload.fill(row_count, seed)
    local random = generator(seed)
    local names_ = {'accounts', 'kinds', 'bare', 'pairs'}
    local id = 0
    while id < row_count do
        box.begin()
        for _ = 1, 500 do
            local name = names_[id % #names_ + 1]
            try(name .. '.replace', actions[name].replace, random, id)
            id = id + 1
        end
        box.commit()
    end
end

-- options: seed, fibers, steps (of each fiber, nil: until stopped), pause, row_count, rows_max
function workload.start(options)
    workload.stopping = false
    guard()
    local function run(func, seed)
        workload.running = workload.running + 1
        local task = fiber.new(function()
            try('fiber', func, seed, options)
            workload.running = workload.running - 1
        end)
        task:name('workload')
    end
    for number = 1, options.fibers do run(work, options.seed + number) end
    run(alter, options.seed + 1001)
    run(large, options.seed + 1002)
end

function workload.stop() workload.stopping = true end

_G.workload = workload
