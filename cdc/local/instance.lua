-- One Tarantool instance, configured by the JSON in TARANTOOL_CDC_INSTANCE: {box, user, password, token}.
local fiber = require('fiber')
local json = require('json')
local log = require('log')

local instance = json.decode(os.getenv('TARANTOOL_CDC_INSTANCE'))
local options = {}
for name, value in pairs(instance.box) do
    if value ~= nil then -- JSON's null is a cdata that equals nil, and box.cfg would take it for a value
        options[name] = value
    end
end

-- A lone instance that starts read-only couldn't be given its users. One with peers gets them from its master, and must
-- say from the start that it isn't the one to write.
local read_only_later = options.read_only and options.replication == nil
if read_only_later then
    options.read_only = false
end

box.cfg(options)

local function has_users()
    return box.space._user.index.name:get(instance.user) ~= nil
end

-- Not on every start: changing a password writes a row, and a restart must leave the vclock alone. And only by the first
-- of several members: two that create the same rows would stop each other's replication.
if not has_users() and box.info.id == 1 and not box.info.ro then
    box.begin()
    box.schema.user.create(instance.user, {password = instance.password})
    box.schema.user.grant(instance.user, 'replication')
    box.schema.user.grant(instance.user, 'read', 'universe')
    -- `admin` is built in and may do everything, but has no password, and without one can't log in over the network.
    box.schema.user.passwd('admin', instance.password)
    box.commit()
end
while not has_users() do
    fiber.sleep(0.01)
end

if read_only_later then
    box.cfg{read_only = true}
end

-- What the starter asks for. A token of its own, because another instance may hold the port and have the same users.
tarantool_cdc_ready = instance.token
log.info('instance ready')
