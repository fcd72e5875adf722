-- The workload of `tarantool-cdc demo`: fill() before the daemon comes, work(seconds) while it follows.
local fiber = require('fiber')
local decimal = require('decimal')
local uuid = require('uuid')

local function fill()
    local accounts = box.schema.space.create('accounts', {format = {
        {name = 'id', type = 'unsigned'},
        {name = 'owner', type = 'string'},
        {name = 'balance', type = 'decimal'},
        {name = 'token', type = 'uuid', is_nullable = true},
    }})
    accounts:create_index('primary', {parts = {'id'}})
    local orders = box.schema.space.create('orders', {format = {
        {name = 'region', type = 'string'},
        {name = 'number', type = 'unsigned'},
        {name = 'account', type = 'unsigned'},
        {name = 'state', type = 'string'},
        {name = 'lines', type = 'array', is_nullable = true},
    }})
    orders:create_index('primary', {parts = {'region', 'number'}})
    box.begin()
    for id = 1, 1000 do
        accounts:insert{id, ('owner %d'):format(id), decimal.new(100), uuid.new()}
    end
    box.commit()
    return accounts:len()
end

local regions = {'north', 'east', 'south', 'west'}

-- One order after the other: placed and paid in one transaction, shipped, some cancelled; accounts come and go.
local function work(seconds)
    local accounts, orders = box.space.accounts, box.space.orders
    local ends, number, altered = fiber.time() + seconds, 0, false
    while fiber.time() < ends do
        number = number + 1
        local region, account = regions[number % 4 + 1], number % 1000 + 1
        if accounts:get(account) == nil then
            accounts:insert{account, ('owner %d again'):format(account), decimal.new(10), box.NULL}
        end
        box.begin()
        orders:insert{region, number, account, 'placed', {{sku = number % 7, pieces = 2}}}
        accounts:update(account, {{'-', 'balance', decimal.new('1.25')}})
        box.commit()
        orders:update({region, number}, {{'=', 'state', 'shipped'}, {'!', 'lines[1]', {sku = 0, pieces = 1}}})
        if number % 5 == 0 then orders:delete{region, number} end
        if number % 11 == 0 then accounts:replace{account, 'sold', decimal.new(0), uuid.new()} end
        if number % 17 == 0 then accounts:delete(account) end
        if number % 19 == 0 then
            accounts:upsert({account, 'promoted', decimal.new(1), box.NULL}, {{'+', 'balance', decimal.new('0.01')}})
        end
        if not altered and fiber.time() > ends - seconds / 2 then
            -- The format grows while changes flow; rows from here on have a city.
            local format = orders:format()
            table.insert(format, {name = 'city', type = 'string', is_nullable = true})
            orders:format(format)
            altered = true
        end
        if altered and number % 3 == 0 then
            orders:replace{region, number, account, 'delivered', {}, 'Oslo'}
        end
        if number % 20 == 0 then fiber.sleep(0.01) end
    end
    return number
end

rawset(_G, 'demo', {fill = fill, work = work})
