import { type CryptoKey, SignJWT } from 'jose';
import { z } from 'zod';
import type { Bounds } from '../../shared/protocol/bounds.ts';
import { CLOSES, type CloseReason } from '../../shared/protocol/closes.ts';
import { HEARTBEAT, type NotificationFrame, RequestFrame } from '../../shared/protocol/frames.ts';
import {
  ANSWER_LIFETIME,
  ANSWER_TYPE,
  type Answer,
  Challenge,
  REFUSALS,
  Refusal,
  type RefusalReason,
  Welcome,
} from '../../shared/protocol/handshake.ts';
import { fitsMessage, readMessage } from '../../shared/protocol/messages.ts';
import type { NOTIFICATIONS, Notification } from '../../shared/protocol/notifications.ts';
import { type Clock, closeBecause, type Transport } from '../../shared/protocol/transport.ts';
import { PROTOCOL_VERSION } from '../../shared/protocol/version.ts';
import { type Dispatcher, errorFrame, type Log } from './dispatch.ts';

export interface LinkEnd {
  /** For the log. */
  reason: string;
  /** Milliseconds the link was up; 0 when it never was. */
  linkedFor: number;
  /** Whether the gateway refused or displaced this agent, so that an immediate redial would fail again. */
  refused: boolean;
}

export interface AgentLinkOptions {
  transport: Transport;
  hostId: string;
  /** Private half of the key the host was enrolled with. */
  key: CryptoKey;
  /** Host and port that the agent dialled. */
  audience: string;
  dispatcher: Dispatcher;
  clock: Clock;
  /** The host's time, Unix milliseconds. */
  unixTime: () => number;
  bounds: Bounds;
  log: Log;
  onLinked: (link: AgentLink) => void;
}

type Phase = 'dialled' | 'answering' | 'answered' | 'linked' | 'ended';

const HandshakeResult = z.discriminatedUnion('type', [Welcome, Refusal]);

/** The agent's end of one socket, from the challenge until the socket closes. */
export class AgentLink {
  readonly ended: Promise<LinkEnd>;
  readonly #options: AgentLinkOptions;
  readonly #end: (end: LinkEnd) => void;
  #phase: Phase = 'dialled';
  #epoch = 0;
  #linkedAt: number | null = null;
  #lastHeard: number;
  #refusal: string | null = null;
  #cancelTimer: () => void;

  /** How a message is handled in each phase. */
  readonly #handlers: Record<Phase, (data: unknown) => void | Promise<void>> = {
    dialled: (data) => this.#answer(data),
    answering: () => this.#drop('malformed'),
    answered: (data) => this.#finishHandshake(data),
    linked: (data) => (data === HEARTBEAT.response ? undefined : this.#serve(data)),
    ended: () => {},
  };

  constructor(options: AgentLinkOptions) {
    this.#options = options;
    const { promise, resolve } = Promise.withResolvers<LinkEnd>();
    this.ended = promise;
    this.#end = resolve;
    this.#lastHeard = options.clock.now();
    this.#cancelTimer = options.clock.after(options.bounds.handshakeTime, () => this.#drop('handshake_late'));
  }

  get isUp(): boolean {
    return this.#phase === 'linked';
  }

  async receive(data: unknown): Promise<void> {
    this.#lastHeard = this.#options.clock.now();
    await this.#handlers[this.#phase](data);
  }

  /** The socket has closed. @param code as in RFC 6455 section 7.4 */
  closed(code: number, reason: string): void {
    if (this.#phase === 'ended') return;
    this.#phase = 'ended';
    this.#cancelTimer();
    this.#end({
      reason: this.#refusal ?? reason,
      linkedFor: this.#linkedAt === null ? 0 : this.#options.clock.now() - this.#linkedAt,
      refused: this.#refusal !== null || code === CLOSES.displaced,
    });
  }

  /** Sends the gateway a notification, if the link is up. */
  notify<N extends Notification>(method: N, params: z.output<(typeof NOTIFICATIONS)[N]['params']>): void {
    if (this.#phase !== 'linked') return;
    const { bounds, log, transport } = this.#options;
    const text = JSON.stringify({ jsonrpc: '2.0', method, params } satisfies NotificationFrame);
    if (fitsMessage(text, bounds)) transport.send(text);
    else log('link.notification_oversize', { method });
  }

  /** Closes the socket on purpose. */
  leave(): void {
    this.#drop('leaving');
  }

  /** Ends the link from this side without waiting for the peer, which may be gone. */
  #drop(reason: CloseReason): void {
    closeBecause(this.#options.transport, reason);
    this.closed(CLOSES[reason], reason);
  }

  /** Reads one message. Ends the link and returns null when the message is not one expected here. */
  #read<S extends z.ZodType>(schema: S, data: unknown): z.output<S> | null {
    const reading = readMessage(schema, data, this.#options.bounds);
    if (reading.ok) return reading.message;
    this.#drop(reading.fault);
    return null;
  }

  async #answer(data: unknown): Promise<void> {
    const { hostId, key, audience, unixTime, transport } = this.#options;
    const challenge = this.#read(Challenge, data);
    if (!challenge) return;
    this.#phase = 'answering';
    // Above the last epoch that the edge saw, even if this host's clock was set back.
    this.#epoch = Math.max(unixTime(), challenge.epoch + 1);
    const issuedAt = Math.floor(unixTime() / 1000);
    const token = await new SignJWT({
      nonce: challenge.nonce,
      epoch: this.#epoch,
      protocol: PROTOCOL_VERSION,
    })
      .setProtectedHeader({ alg: 'EdDSA', typ: ANSWER_TYPE })
      .setIssuer(hostId)
      .setAudience(audience)
      .setIssuedAt(issuedAt)
      .setExpirationTime(issuedAt + ANSWER_LIFETIME)
      .sign(key);
    if (this.#phase !== 'answering') return;
    this.#phase = 'answered';
    transport.send(JSON.stringify({ type: 'answer', token } satisfies z.input<typeof Answer>));
  }

  #finishHandshake(data: unknown): void {
    const result = this.#read(HandshakeResult, data);
    if (!result) return;
    if (result.type === 'refusal') {
      const { reason } = result;
      this.#refusal = `refused: ${isKnown(reason) ? REFUSALS[reason] : reason}`;
      this.#drop('refused');
      return;
    }
    if (result.epoch !== this.#epoch) {
      this.#drop('malformed');
      return;
    }
    const { clock, onLinked } = this.#options;
    this.#phase = 'linked';
    this.#linkedAt = clock.now();
    this.#cancelTimer();
    this.#scheduleHeartbeat();
    onLinked(this);
  }

  #scheduleHeartbeat(): void {
    const { bounds, clock, transport } = this.#options;
    this.#cancelTimer = clock.after(bounds.heartbeat, () => {
      if (clock.now() - this.#lastHeard >= bounds.silence) {
        this.#drop('silent');
      } else {
        transport.send(HEARTBEAT.request);
        this.#scheduleHeartbeat();
      }
    });
  }

  async #serve(data: unknown): Promise<void> {
    const frame = this.#read(RequestFrame, data);
    if (!frame) return;
    const { bounds, dispatcher, log, transport } = this.#options;
    let text = JSON.stringify(await dispatcher.dispatch(frame));
    if (!fitsMessage(text, bounds)) {
      log('link.reply_oversize', { method: frame.method });
      text = JSON.stringify(
        errorFrame(frame.id, { code: 'INTERNAL', message: 'the result is over the message size' }),
      );
    }
    // The edge has abandoned the calls of a link that is gone, and a newer link must not carry their replies.
    if (this.#phase === 'linked') transport.send(text);
  }
}

const isKnown = (reason: string): reason is RefusalReason => Object.hasOwn(REFUSALS, reason);
