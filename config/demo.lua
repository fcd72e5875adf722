-- The Tarantool of docker-compose.yml: what a master needs for the daemon, and some changes for it to publish.
local fiber = require('fiber')

box.cfg{
    listen = os.getenv('DEMO_LISTEN') or '0.0.0.0:3301',
    replication_timeout = 1,
    -- Logs that a daemon needs after a pause are kept with the snapshots that they follow.
    checkpoint_count = 4,
}

if box.space._user.index.name:get('cdc') == nil then
    box.begin()
    -- All that the daemon's user needs: to replicate, and to read.
    box.schema.user.create('cdc', {password = os.getenv('CDC_PASSWORD') or 's3cret'})
    box.schema.user.grant('cdc', 'replication')
    box.schema.user.grant('cdc', 'read', 'universe')

    local users = box.schema.space.create('users', {format = {
        {name = 'id', type = 'unsigned'},
        {name = 'email', type = 'string'},
        {name = 'balance', type = 'number', is_nullable = true},
    }})
    users:create_index('primary', {parts = {'id'}})
    local orders = box.schema.space.create('orders', {format = {
        {name = 'id', type = 'unsigned'},
        {name = 'user_id', type = 'unsigned'},
        {name = 'state', type = 'string'},
    }})
    orders:create_index('primary', {parts = {'id'}})
    box.commit()
    for id = 1, 100 do
        users:insert{id, ('user%d@example.org'):format(id), 100}
    end
end

-- An order a second: placed and paid in one transaction, shipped in another; every tenth is withdrawn.
fiber.create(function()
    local users, orders = box.space.users, box.space.orders
    local last = orders.index.primary:max()
    local id = last == nil and 0 or last.id
    while true do
        id = id + 1
        local user_id = id % 100 + 1
        box.begin()
        orders:insert{id, user_id, 'placed'}
        users:update(user_id, {{'-', 'balance', 1}})
        box.commit()
        orders:update(id, {{'=', 'state', 'shipped'}})
        if id % 10 == 0 then
            orders:delete(id)
        end
        fiber.sleep(1)
    end
end)
