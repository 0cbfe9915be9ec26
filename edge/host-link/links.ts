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
import { PROTOCOL_VERSION } from '../../shared/protocol/version.ts';
import { type CallOutcome, failed, PendingCalls } from './pending-calls.ts';
import { type Expected, verifyHandshake } from './verify-handshake.ts';

/** Where a socket stands. Kept with the socket, because the object that reads it may be a new one. */
export type SocketState =
  | ({ phase: 'challenged'; since: number } & Expected)
  | { phase: 'answered' }
  | { phase: 'linked'; since: number; epoch: number }
  | { phase: 'closed' };

type InPhase<P extends SocketState['phase']> = Extract<SocketState, { phase: P }>;

export interface LinkSocket extends Transport {
  state(): SocketState;
  keep(state: SocketState): void;
  /** Unix milliseconds of the last beat that came in; 0 when there was none. */
  lastBeat(): number;
}

/** The Worker's word on who dials, as a header of the upgrade. The object can be reached through the Worker alone. */
export const CALLER_HEADER = 'Link-Caller';

/** Who the Worker says is dialling: the host it looked up, and the name it was dialled by. */
export type Caller = Omit<Expected, 'nonce'>;

interface LinksOptions {
  /** Every open socket of this host. */
  sockets: () => LinkSocket[];
  /** The newest epoch a link of this host has had. Outlives everything else. */
  epoch: { newest: () => number; remember: (epoch: number) => void };
  onLinked: () => void;
  /** Told what the live link's agent tells unasked. Its parameters are not checked yet. */
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
  /** Nonce of an open challenge → stops its timer. A timer left running would keep the object from sleeping. */
  readonly #handshakeTimers = new Map<string, () => void>();

  constructor(options: LinksOptions) {
    this.#options = options;
    this.#calls = new PendingCalls({ ...options, dropSilentLinks: () => this.#live() });
  }

  linked(): boolean {
    return this.#live() !== null;
  }

  async call<M extends Method>(method: M, params: Params<M>): Promise<CallOutcome<Method>> {
    const live = this.#live();
    if (!live) return failed('HOST_UNAVAILABLE', 'no agent is linked');
    return this.#calls.make(live.socket, live.state.epoch, method, params);
  }

  /** A new socket: it gets its challenge and a while to answer. */
  accept(socket: LinkSocket, caller: Caller): void {
    const { bounds, clock, epoch } = this.#options;
    const unfinished = this.#inPhase('challenged').sort((a, b) => b.state.since - a.state.since);
    for (const oldest of unfinished.slice(bounds.unfinishedHandshakes - 1)) {
      this.#drop(oldest.socket, 'crowded');
    }
    const nonce = makeNonce();
    socket.keep({ phase: 'challenged', since: clock.now(), nonce, ...caller });
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
        return this.#judge(socket, state, data);
      case 'answered':
        // Nothing may be said between answer and welcome; a second answer least of all.
        return this.#drop(socket, 'malformed');
      case 'linked':
        return this.#hear(socket, state, data);
      case 'closed':
        // What a displaced link still has to say is of no interest.
        return;
    }
  }

  /** The socket has closed, from whichever side. */
  lost(socket: LinkSocket): void {
    const state = socket.state();
    socket.keep({ phase: 'closed' });
    if (state.phase === 'challenged') this.#stopTimer(state.nonce);
    if (state.phase === 'linked') this.#calls.abandon(state.epoch);
  }

  async #judge(socket: LinkSocket, state: InPhase<'challenged'>, data: unknown): Promise<void> {
    const { bounds, clock, epoch, log, onLinked } = this.#options;
    const reading = readMessage(Answer, data, bounds);
    if (!reading.ok) return this.#drop(socket, reading.fault);
    this.#stopTimer(state.nonce);
    socket.keep({ phase: 'answered' });
    const verdict = await verifyHandshake(reading.message.token, state, clock.now());
    if (socket.state().phase !== 'answered') return;
    if (!verdict.ok) return this.#refuse(socket, state.hostId, verdict.reason);
    // Nothing is awaited from here on, so of two answers judged at the same time only the newer can stay.
    if (verdict.epoch <= epoch.newest()) return this.#refuse(socket, state.hostId, 'stale_epoch');
    epoch.remember(verdict.epoch);
    for (const older of this.#inPhase('linked')) this.#drop(older.socket, 'displaced');
    socket.keep({ phase: 'linked', since: clock.now(), epoch: verdict.epoch });
    send<typeof Welcome>(socket, { type: 'welcome', epoch: verdict.epoch });
    log('link.up', { host_id: state.hostId, epoch: verdict.epoch });
    onLinked();
  }

  #refuse(socket: LinkSocket, hostId: string, reason: RefusalReason): void {
    this.#options.log('link.refused', { host_id: hostId, reason });
    send<typeof Refusal>(socket, { type: 'refusal', reason });
    this.#drop(socket, 'refused');
  }

  #hear(socket: LinkSocket, { epoch }: InPhase<'linked'>, data: unknown): void {
    const reading = readMessage(FromAgent, data, this.#options.bounds);
    if (!reading.ok) this.#drop(socket, reading.fault);
    else if ('id' in reading.message) this.#calls.settle(epoch, reading.message);
    else this.#options.onNotification(reading.message);
  }

  #stopTimer(nonce: string): void {
    this.#handshakeTimers.get(nonce)?.();
    this.#handshakeTimers.delete(nonce);
  }

  /** The live link, once those that have been silent for two beats are dropped. */
  #live() {
    const { clock, bounds } = this.#options;
    const linked = this.#inPhase('linked');
    const isSilent = ({ socket, state }: (typeof linked)[number]) =>
      clock.now() - Math.max(state.since, socket.lastBeat()) > bounds.silence;
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

const makeNonce = () => base64url.encode(crypto.getRandomValues(new Uint8Array(NONCE_BYTES)));

const send = <S extends z.ZodType>(socket: LinkSocket, message: z.input<S>) =>
  socket.send(JSON.stringify(message));
