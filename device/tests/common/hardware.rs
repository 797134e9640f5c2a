//! Parameters of modelled hardware for tests.

use willow_device::model::ModelParameters;
use willow_device::model::parameters::*;

/// Hardware with round numbers.
pub fn parameters() -> ModelParameters {
    let watts = |idle_w, active_w| Watts { idle_w, active_w };
    let accelerator =
        AcceleratorParameters { clock_hz: 1_000_000_000, bytes_per_cycle: 16, set_up_ns: 10, power: None };
    ModelParameters {
        link: LinkParameters {
            in_bytes_per_s: 1_000_000_000,
            out_bytes_per_s: 1_000_000_000,
            packet_payload_bytes: 128,
            in_packet_overhead_bytes: 20,
            out_packet_overhead_bytes: 20,
            in_latency_ns: 100,
            out_latency_ns: 150,
            fetch_ns: 400,
            command_bytes: 64,
            completion_bytes: 16,
        },
        bridge: BridgeParameters { in_message_ns: 50, out_message_ns: 60, cut_through: false },
        ring: RingParameters { width_bits: 128, clock_hz: 250_000_000, round_trip_ns: 0 },
        spu: SpuParameters {
            clock_hz: 100_000_000,
            cycles_per_instruction: 1.0,
            operator_cost: OperatorCosts {
                simple: 1,
                load: 1,
                store: 1,
                multiply: 1,
                divide: 1,
                branch: 1,
                call: 1,
                float: 1,
                vector: 1,
            },
            dispatch_cycles: 100,
            resume_cycles: 50,
            send_cycles: 20,
            dma_set_up_cycles: 10,
            permission_check_cycles: 70,
            native_run_instructions: 30,
        },
        dma: DmaParameters { bytes_per_s: 2_000_000_000, set_up_ns: 200 },
        media: MediaParameters::Pcm(PcmParameters {
            activate_read_ns: 48,
            precharge_write_ns: 150,
            access_ns: 0,
            row_bytes: 8192,
            banks: 8,
            bytes_per_cycle: 16,
            clock_hz: 250_000_000,
            line_bytes: 256,
            gap_write_interval: 100,
            endurance_writes: 1_000_000,
            dies: 32,
        }),
        accelerator: Accelerators::alike(&accelerator),
        power: PowerParameters {
            link: watts(0.12, 0.4),
            bridge: watts(0.3, 1.3),
            ring: watts(0.03, 0.06),
            spu_processor: watts(0.078, 0.37),
            dma_controller: watts(0.01, 0.09),
            accelerator: watts(0.013, 0.12),
            media_controller: watts(0.24, 0.34),
            media_read_pj_per_bit: 2.47,
            media_write_pj_per_bit: 16.82,
            media_background_uw_per_die: 264.0,
        },
    }
}
