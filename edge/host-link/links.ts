import { base64url } from 'jose';
import { z } from 'zod';
import type { Bounds } from '../../shared/protocol/bounds.ts';
import type { CloseReason } from '../../shared/protocol/closes.ts';
import { NotificationFrame, ReplyFrame } from '../../shared/protocol/frames.ts';
import {
  Answer,
  type Challenge,
  type Refusal,
  type RefusalReason,
  type Welcome,
} from '../../shared/protocol/handshake.ts';
import { readMessage } from '../../shared/protocol/messages.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';
import { type Clock, closeBecause, type Transport } from '../../shared/protocol/transport.ts';
import { PREVIOUS_VERSION, PROTOCOL_VERSION } from '../../shared/protocol/version.ts';
import type { CallOutcome } from '../hosts/host-client.ts';
import { type Expected, verifyHandshake } from './handshake.ts';
import { failed, PendingCalls } from './pending-calls.ts';
import { notificationFromPreviousVersion } from './previous-version.ts';

/** The state of a socket. It is attached to the socket, so that it survives hibernation of the object. */
export type SocketState =
  | ({ phase: 'challenged'; since: number } & Expected)
  | { phase: 'answered' }
  | { phase: 'linked'; since: number; epoch: number; protocol: number }
  | { phase: 'closed' };

type InPhase<P extends SocketState['phase']> = Extract<SocketState, { phase: P }>;

export interface LinkSocket extends Transport {
  state(): SocketState;
  setState(state: SocketState): void;
  /** Unix milliseconds of the last heartbeat received; 0 if there was none. */
  lastHeartbeat(): number;
}

/**
 * Header of the upgrade with the `Caller`. It can be trusted, because only the Worker can reach the object.
 */
export const CALLER_HEADER = 'Link-Caller';

/** The connecting host, as looked up by the Worker, and the address that its request was made to. */
export type Caller = Omit<Expected, 'nonce'>;

interface LinksOptions {
  /** Every open socket of this host. */
  sockets: () => LinkSocket[];
  /** The newest epoch of all links of this host, in durable storage. */
  epoch: { newest: () => number; remember: (epoch: number) => void };
  onLinked: () => void;
  /** Called for each notification on the live link. Its parameters are not validated yet. */
  onNotification: (notification: NotificationFrame) => void;
  log: (event: string, fields: Record<string, unknown>) => void;
  clock: Clock;
  bounds: Bounds;
}

const NONCE_BYTES = 32;

const FromAgent = z.union([ReplyFrame, NotificationFrame]);

/** The edge's end of one host's links: at most one is live, the one with the newest epoch. */
export class Links {
  readonly #options: LinksOptions;
  readonly #calls: PendingCalls;
  /** Cancels the timer of an open challenge, by nonce. A running timer would prevent hibernation. */
  readonly #handshakeTimers = new Map<string, () => void>();

  constructor(options: LinksOptions) {
    this.#options = options;
    this.#calls = new PendingCalls({ ...options, dropSilentLinks: () => this.#live() });
  }

  linked(): boolean {
    return this.#live() !== null;
  }

  async call<M extends Method>(
    method: M,
    params: Params<M>,
    traceparent?: string,
  ): Promise<CallOutcome<Method>> {
    const live = this.#live();
    if (!live) return failed('HOST_UNAVAILABLE', 'no agent is linked');
    return this.#calls.make(live.socket, live.state, { method, params, traceparent });
  }

  /** Sends a challenge on a new socket, and limits the time for the response. */
  accept(socket: LinkSocket, caller: Caller): void {
    const { bounds, clock, epoch } = this.#options;
    const unfinished = this.#inPhase('challenged').sort((a, b) => b.state.since - a.state.since);
    for (const oldest of unfinished.slice(bounds.unfinishedHandshakes - 1)) {
      this.#drop(oldest.socket, 'crowded');
    }
    const nonce = makeNonce();
    socket.setState({ phase: 'challenged', since: clock.now(), nonce, ...caller });
    send<typeof Challenge>(socket, {
      type: 'challenge',
      protocol: PROTOCOL_VERSION,
      nonce,
      epoch: epoch.newest(),
    });
    this.#handshakeTimers.set(
      nonce,
      clock.after(bounds.handshakeTime, () => this.#drop(socket, 'handshake_late')),
    );
  }

  async receive(socket: LinkSocket, data: unknown): Promise<void> {
    const state = socket.state();
    switch (state.phase) {
      case 'challenged':
        return this.#finishHandshake(socket, state, data);
      case 'answered':
        // The agent must not send anything between its answer and the welcome.
        return this.#drop(socket, 'malformed');
      case 'linked':
        return this.#handleFrame(socket, state, data);
      case 'closed':
        // Messages of a displaced link are ignored.
        return;
    }
  }

  /** Handles a socket that was closed by either side. */
  lost(socket: LinkSocket): void {
    const state = socket.state();
    socket.setState({ phase: 'closed' });
    if (state.phase === 'challenged') this.#stopTimer(state.nonce);
    if (state.phase === 'linked') this.#calls.abandon(state.epoch);
  }

  /** Ends every link and unfinished handshake. */
  endAll(reason: CloseReason): void {
    for (const socket of this.#options.sockets())
      if (socket.state().phase !== 'closed') this.#drop(socket, reason);
  }

  async #finishHandshake(socket: LinkSocket, state: InPhase<'challenged'>, data: unknown): Promise<void> {
    const { bounds, clock, epoch, log, onLinked } = this.#options;
    const reading = readMessage(Answer, data, bounds);
    if (!reading.ok) return this.#drop(socket, reading.fault);
    this.#stopTimer(state.nonce);
    socket.setState({ phase: 'answered' });
    const verified = await verifyHandshake(reading.message.token, state, clock.now());
    if (socket.state().phase !== 'answered') return;
    if (!verified.ok) return this.#refuse(socket, state.hostId, verified.reason);
    // Nothing is awaited from here on, so that of two concurrent handshakes only the newer one succeeds.
    if (verified.epoch <= epoch.newest()) return this.#refuse(socket, state.hostId, 'stale_epoch');
    epoch.remember(verified.epoch);
    for (const older of this.#inPhase('linked')) this.#drop(older.socket, 'displaced');
    socket.setState({
      phase: 'linked',
      since: clock.now(),
      epoch: verified.epoch,
      protocol: verified.protocol,
    });
    send<typeof Welcome>(socket, { type: 'welcome', epoch: verified.epoch });
    log('link.up', { host_id: state.hostId, epoch: verified.epoch, protocol: verified.protocol });
    onLinked();
  }

  #refuse(socket: LinkSocket, hostId: string, reason: RefusalReason): void {
    this.#options.log('link.refused', { host_id: hostId, reason });
    send<typeof Refusal>(socket, { type: 'refusal', reason });
    this.#drop(socket, 'refused');
  }

  #handleFrame(socket: LinkSocket, { epoch, protocol }: InPhase<'linked'>, data: unknown): void {
    const reading = readMessage(FromAgent, data, this.#options.bounds);
    if (!reading.ok) this.#drop(socket, reading.fault);
    else if ('id' in reading.message) this.#calls.settle(epoch, reading.message);
    else this.#options.onNotification(inPresentForm(reading.message, protocol));
  }

  #stopTimer(nonce: string): void {
    this.#handshakeTimers.get(nonce)?.();
    this.#handshakeTimers.delete(nonce);
  }

  /** The live link, after dropping links without a heartbeat for two intervals. */
  #live() {
    const { clock, bounds } = this.#options;
    const linked = this.#inPhase('linked');
    const isSilent = ({ socket, state }: (typeof linked)[number]) =>
      clock.now() - Math.max(state.since, socket.lastHeartbeat()) > bounds.silence;
    for (const { socket } of linked.filter(isSilent)) this.#drop(socket, 'silent');
    return this.#inPhase('linked').at(0) ?? null;
  }

  #drop(socket: LinkSocket, reason: CloseReason): void {
    this.lost(socket);
    closeBecause(socket, reason);
  }

  #inPhase<P extends SocketState['phase']>(phase: P): { socket: LinkSocket; state: InPhase<P> }[] {
    return this.#options.sockets().flatMap((socket) => {
      const state = socket.state();
      return isInPhase(state, phase) ? [{ socket, state }] : [];
    });
  }
}

const isInPhase = <P extends SocketState['phase']>(state: SocketState, phase: P): state is InPhase<P> =>
  state.phase === phase;

const inPresentForm = (notification: NotificationFrame, protocol: number): NotificationFrame =>
  protocol === PREVIOUS_VERSION
    ? { ...notification, params: notificationFromPreviousVersion(notification.method, notification.params) }
    : notification;

const makeNonce = () => base64url.encode(crypto.getRandomValues(new Uint8Array(NONCE_BYTES)));

const send = <S extends z.ZodType>(socket: LinkSocket, message: z.input<S>) =>
  socket.send(JSON.stringify(message));
