import { IS_NIGHTLY } from '../support/nightly.ts';
import { planSchedule } from './plan.ts';
import { type Schedule, TWO_HOSTS, WITH_STANDBY } from './schedule.ts';

/** The seed of a short schedule. */
const DAILY = [4211];

/**
 * Seeds of short schedules that together contain every kind of operation and fault, each part killed and
 * frozen, clocks ahead and behind (`plan.test.ts`), and a first fault at every step but those that
 * `test/end-to-end/faults-branches.e2e.test.ts` strikes. A change of the plans requires other seeds.
 */
export const NIGHTLY = [55, 93, 104, 196, 305, 309, 327, 517, 700, 806, 947, 1329, 4404, 6545];

/** The same for two database hosts: most steps of a move are struck, and each host is cut off. */
export const NIGHTLY_OF_TWO_HOSTS = [119, 318, 376, 762, 784, 1277];

/** The same with a standby: it takes the place of its primary by a planned switch, and of a lost one. */
export const NIGHTLY_WITH_STANDBY = [3, 4, 16, 29];

/** The fixed schedules of this run. */
export const fixedSchedules = (): Schedule[] =>
  IS_NIGHTLY
    ? [
        ...NIGHTLY.map((seed) => planSchedule(seed, 'short')),
        ...NIGHTLY_OF_TWO_HOSTS.map((seed) => planSchedule(seed, 'short', TWO_HOSTS)),
        ...NIGHTLY_WITH_STANDBY.map((seed) => planSchedule(seed, 'short', WITH_STANDBY)),
      ]
    : DAILY.map((seed) => planSchedule(seed, 'short'));
