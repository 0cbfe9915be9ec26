import { testFixedSchedules } from './fixed-schedules.ts';

testFixedSchedules(1);
