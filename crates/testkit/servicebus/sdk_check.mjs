// Checks the double with Microsoft's SDK for JavaScript (@azure/service-bus).
//
// usage: node sdk_check.mjs AMQP_PORT ADMIN_PORT, in a folder with the SDK in node_modules

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const { ServiceBusAdministrationClient, ServiceBusClient } = createRequire(`${process.cwd()}/`)('@azure/service-bus');
const [amqp, admin] = process.argv.slice(2);
const queue = 'javascript-sdk';
const patience = { maxWaitTimeInMs: 60_000 };

const connection = (port, secret = 'c2VjcmV0') =>
  `Endpoint=sb://127.0.0.1:${port};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=${secret};` +
  'UseDevelopmentEmulator=true;';
const client = (secret) => new ServiceBusClient(connection(amqp, secret), { retryOptions: { maxRetries: 0 } });
const fails = (code, work) => assert.rejects(work, (error) => error.code === code || assert.fail(`${code}: ${error}`));

const one = async (receiver) => {
  const received = await receiver.receiveMessages(1, patience);
  assert.equal(received.length, 1);
  return received[0];
};

const management = new ServiceBusAdministrationClient(connection(admin));
// HTTP instead of HTTPS, which the SDK insists on.
const sendRequest = (request, next) => {
  request.url = request.url.replace('https://', 'http://');
  request.allowInsecureConnection = true;
  return next(request);
};
management.pipeline.addPolicy({ name: 'plain', sendRequest });
await management.createQueue(queue, { lockDuration: 'PT3S', maxDeliveryCount: 3 });
assert.equal((await management.getQueue(queue)).maxDeliveryCount, 3);
assert.equal(await management.queueExists('missing'), false);

const bus = client();
const sender = bus.createSender(queue);
const receiver = bus.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
const dead = bus.createReceiver(queue, { subQueueType: 'deadLetter' });

// Settling.
await sender.sendMessages({ body: 'one', messageId: 'j1', applicationProperties: { n: 7 } });
let message = await one(receiver);
assert.deepEqual([message.body, message.messageId, message.deliveryCount], ['one', 'j1', 0]);
assert.equal(message.applicationProperties.n, 7);
const until = message.lockedUntilUtc;
assert.ok((await receiver.renewMessageLock(message)) >= until);
await receiver.abandonMessage(message);
message = await one(receiver);
assert.equal(message.deliveryCount, 1);
await receiver.deadLetterMessage(message, { deadLetterReason: 'bad', deadLetterErrorDescription: 'because' });
assert.deepEqual((await dead.peekMessages(5)).map((letter) => letter.deadLetterReason), ['bad']);
await dead.completeMessage(await one(dead));

// Schedules.
const begin = Date.now();
await sender.scheduleMessages({ body: 'later' }, new Date(begin + 1_500));
message = await one(receiver);
assert.ok(Date.now() - begin > 1_400);
await receiver.completeMessage(message);
const [number] = await sender.scheduleMessages({ body: 'never' }, new Date(begin + 3_600_000));
assert.equal((await management.getQueueRuntimeProperties(queue)).scheduledMessageCount, 1);
await sender.cancelScheduledMessages(number);
assert.equal((await management.getQueueRuntimeProperties(queue)).totalMessageCount, 0);

// Batches.
const batch = await sender.createMessageBatch();
for (const body of ['a', 'b', 'c']) assert.ok(batch.tryAddMessage({ body }));
await sender.sendMessages(batch);
const bodies = [];
while (bodies.length < 3) {
  for (const part of await receiver.receiveMessages(3, patience)) {
    bodies.push(part.body);
    await receiver.completeMessage(part);
  }
}
assert.deepEqual(bodies, ['a', 'b', 'c']);

// A lost lock.
await sender.sendMessages({ body: 'slow' });
const first = await one(receiver);
const second = await one(receiver);
await fails('MessageLockLost', () => receiver.completeMessage(first));
await receiver.completeMessage(second);

// Refusals.
await fails('MessagingEntityNotFound', () => bus.createSender('missing').sendMessages({ body: 'x' }));
const wrong = client('d3Jvbmc=');
await fails('UnauthorizedAccess', () => wrong.createSender(queue).sendMessages({ body: 'x' }));

await wrong.close();
await bus.close();
console.log('passed');
