import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.TapClient;
import net.spy.memcached.tapmessage.RequestMessage;
import net.spy.memcached.tapmessage.ResponseMessage;
import net.spy.memcached.tapmessage.TapMagic;
import net.spy.memcached.tapmessage.TapOpcode;
import net.spy.memcached.tapmessage.TapRequestFlag;

/** java -cp spymemcached.jar SpyTap.java PORT dump|follow : prints what spymemcached's TapClient delivers, a line for each. */
public class SpyTap {
    public static void main(String[] arguments) throws Exception {
        TapClient client = new TapClient(List.of(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]))));
        if (arguments[1].equals("dump")) {
            client.tapDump("spy-dump");
        } else {
            RequestMessage request = new RequestMessage();
            request.setMagic(TapMagic.PROTOCOL_BINARY_REQ);
            request.setOpcode(TapOpcode.REQUEST);
            request.setFlags(TapRequestFlag.BACKFILL);
            request.setFlags(TapRequestFlag.SUPPORT_ACK);
            request.setBackfill(0);
            request.setName("spy");
            client.tapCustom("spy", request);
        }
        while (client.hasMoreMessages()) {
            ResponseMessage message = client.getNextMessage(100, TimeUnit.MILLISECONDS);
            if (message != null) {
                byte[] value = message.getValue();
                System.out.println(message.getOpcode() + "\t" + message.getKey() + "\t" + (value == null ? "" : new String(value))
                    + "\t" + message.getCas() + "\t" + message.getVbucket());
            }
        }
        client.shutdown();
    }
}
