"""Planted failures: is the right cause named first?

    python bench/causes/run.py OUT.json [--split SPLIT] [--only JOB,…]

Each job runs out of memory on the virtual GPU with the memory given here. What counts is the first cause of
`oomph run --json`. `--table` prints a results file.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIMIT = 900
"""Seconds that one command may take."""

TUNED, HELD_OUT, FRESH, UNSEEN = "tuned", "held_out", "fresh", "unseen"
UNSEEN_AGAIN, SECOND_READER = "unseen_again", "second_reader"
THIRD_READER, FOURTH_READER, FIFTH_READER = "third_reader", "fourth_reader", "fifth_reader"
SIXTH_READER, SEVENTH_READER, EIGHTH_READER = "sixth_reader", "seventh_reader", "eighth_reader"
NINTH_READER, TENTH_READER = "ninth_reader", "tenth_reader"
ELEVENTH_READER, TWELFTH_READER = "eleventh_reader", "twelfth_reader"
SPLITS = (
    TUNED, HELD_OUT, FRESH, UNSEEN, UNSEEN_AGAIN, SECOND_READER, THIRD_READER, FOURTH_READER, FIFTH_READER,
    SIXTH_READER, SEVENTH_READER, EIGHTH_READER, NINTH_READER, TENTH_READER, ELEVENTH_READER, TWELFTH_READER,
)  # fmt: skip
JOBS = {
    # job: (cause, memory, split[, gpu])
    "efficientnet_batch": ("batch_too_large", "10GiB", TUNED),
    "unet_batch": ("batch_too_large", "4GiB", HELD_OUT),
    "video_batch": ("batch_too_large", "5GiB", TUNED),
    "wavenet_batch": ("batch_too_large", "6GiB", HELD_OUT),
    "opt_setup": ("model_too_large", "2GiB", TUNED),
    "dlrm_tables": ("model_too_large", "3.2GiB", HELD_OUT),
    "experts_gradients": ("model_too_large", "4GiB", HELD_OUT),
    "bert_adamw": ("optimizer_state", "4GiB", TUNED),
    "convnext_adam": ("optimizer_state", "2.8GiB", HELD_OUT),
    "gru_nadam": ("optimizer_state", "3.5GiB", TUNED),
    "t5_vocabulary": ("logits", "6GiB", TUNED),
    "llama_vocabulary": ("logits", "5GiB", HELD_OUT),
    "gru_words": ("logits", "3GiB", TUNED),
    "items_softmax": ("logits", "5GiB", HELD_OUT),
    "vit_softmax": ("attention_scores", "2.5GiB", TUNED),
    "einsum_attention": ("attention_scores", "2.5GiB", HELD_OUT),
    "bert_eager": ("attention_scores", "6GiB", TUNED),
    "t5_scores": ("attention_scores", "6GiB", HELD_OUT),
    "large_image": ("input_spike", "4GiB", TUNED),
    "long_document": ("input_spike", "2.5GiB", HELD_OUT),
    "many_points": ("input_spike", "4GiB", TUNED),
    "loss_summed": ("graph_retained", "3GiB", TUNED),
    "recurrent_state": ("graph_retained", "2GiB", HELD_OUT),
    "log_probabilities": ("graph_retained", "2GiB", TUNED),
    "second_order": ("graph_retained", "3GiB", HELD_OUT),
    "masks_collected": ("tensors_kept", "4GiB", TUNED),
    "features_collected": ("tensors_kept", "1.2GiB", HELD_OUT),
    "replay_buffer": ("tensors_kept", "1.5GiB", TUNED),
    "probabilities_kept": ("tensors_kept", "3GiB", HELD_OUT),
    "teacher_graph": ("missing_no_grad", "5GiB", TUNED),
    "embeddings_graph": ("missing_no_grad", "4GiB", HELD_OUT),
    "validation_graph": ("missing_no_grad", "3GiB", TUNED),
    "decoder_graph": ("missing_no_grad", "1GiB", HELD_OUT),
    "folds_kept": ("stale_model", "1.5GiB", TUNED),
    "search_kept": ("stale_model", "1.5GiB", HELD_OUT),
    "second_model": ("stale_model", "2GiB", HELD_OUT),
    "resume_on_gpu": ("checkpoint_on_gpu", "0.6GiB", TUNED),
    "best_on_gpu": ("checkpoint_on_gpu", "0.8GiB", HELD_OUT),
    "optimizer_checkpoint": ("checkpoint_on_gpu", "0.45GiB", HELD_OUT),
    "tables_between": ("fragmentation", "4.3GiB", TUNED),
    "indexes_between": ("fragmentation", "4GiB", HELD_OUT),
    "levels_between": ("fragmentation", "3.5GiB", TUNED),
    "volumes_transformed": ("workspace", "3.6GiB", TUNED),
    "heads_on_streams": ("workspace", "1.6GiB", HELD_OUT, "h200"),
    "experts_on_streams": ("workspace", "1.6GiB", TUNED, "h200"),
    "qwen_generation": ("kv_cache", "3GiB", TUNED),
    "own_cache": ("kv_cache", "2GiB", HELD_OUT),
    "llama_long_answer": ("kv_cache", "2.5GiB", HELD_OUT),
    "one_segment": ("mitigation_inert", "4GiB", TUNED),
    "outputs_hooked": ("mitigation_inert", "1.6GiB", HELD_OUT),
    "lightning_batch": ("batch_too_large", "2.2GiB", FRESH),
    "answers_without_cache": ("batch_too_large", "5GiB", FRESH),
    "mistral_gradients": ("model_too_large", "2.6GiB", FRESH),
    "swin_amsgrad": ("optimizer_state", "1.6GiB", FRESH),
    "float_logits": ("logits", "4GiB", FRESH),
    "attention_function": ("attention_scores", "2GiB", FRESH),
    "one_large_graph": ("input_spike", "5GiB", FRESH),
    "simulator_state": ("graph_retained", "4GiB", FRESH),
    "lightning_monitor": ("graph_retained", "1.2GiB", FRESH),
    "contrast_queue": ("tensors_kept", "1.1GiB", FRESH),
    "parts_segmented": ("tensors_kept", "2GiB", FRESH),
    "trainer_predictions": ("tensors_kept", "2GiB", FRESH),
    "diffusion_sampling": ("missing_no_grad", "4GiB", FRESH),
    "value_targets": ("missing_no_grad", "1.3GiB", FRESH),
    "recurrent_evaluation": ("missing_no_grad", "1.2GiB", FRESH),
    "failures_kept": ("stale_model", "1.1GiB", FRESH),
    "snapshots_kept": ("stale_model", "1.2GiB", FRESH),
    "averaged_checkpoint": ("checkpoint_on_gpu", "0.38GiB", FRESH),
    "clips_between": ("fragmentation", "1.5GiB", FRESH),
    "listed_cache": ("kv_cache", "3GiB", FRESH),
    "beams_translated": ("kv_cache", "0.9GiB", FRESH),
    "sensors_batch": ("batch_too_large", "3GiB", UNSEEN),
    "hypernetwork": ("model_too_large", "2.2GiB", UNSEEN),
    "lamb_written_out": ("optimizer_state", "2.9GiB", UNSEEN),
    "masked_words": ("logits", "4.5GiB", UNSEEN),
    "identities_margin": ("logits", "4GiB", UNSEEN),
    "non_local": ("attention_scores", "5GiB", UNSEEN),
    "one_long_recording": ("input_spike", "3GiB", UNSEEN),
    "gradnorm_history": ("graph_retained", "2GiB", UNSEEN),
    "sharpness_curve": ("graph_retained", "2.5GiB", UNSEEN),
    "activation_histograms": ("tensors_kept", "1.5GiB", UNSEEN),
    "images_cached": ("tensors_kept", "1.2GiB", UNSEEN),
    "preference_reference": ("missing_no_grad", "2.8GiB", UNSEEN),
    "image_in_tiles": ("missing_no_grad", "3GiB", UNSEEN),
    "models_by_language": ("stale_model", "0.8GiB", UNSEEN),
    "optimizers_by_store": ("stale_model", "1.8GiB", UNSEEN),
    "soup_of_weights": ("checkpoint_on_gpu", "0.35GiB", UNSEEN),
    "descriptors_between": ("fragmentation", "2.2GiB", UNSEEN),
    "reverb": ("workspace", "4.5GiB", UNSEEN),
    "static_cache": ("kv_cache", "3GiB", UNSEEN),
    "eval_left_on": ("mitigation_inert", "3GiB", UNSEEN),
    "edsr_patches": ("batch_too_large", "3GiB", UNSEEN_AGAIN),
    "regnet_accelerated": ("batch_too_large", "3.5GiB", UNSEEN_AGAIN),
    "falcon_in_fp32": ("model_too_large", "2.6GiB", UNSEEN_AGAIN),
    "rprop_translator": ("optimizer_state", "2.4GiB", UNSEEN_AGAIN),
    "lookahead_radam": ("optimizer_state", "1.4GiB", UNSEEN_AGAIN),
    "neox_vocabulary": ("logits", "4GiB", UNSEEN_AGAIN),
    "deberta_reader": ("attention_scores", "3GiB", UNSEEN_AGAIN),
    "weights_returned": ("attention_scores", "2.5GiB", UNSEEN_AGAIN),
    "one_wide_line": ("input_spike", "3GiB", UNSEEN_AGAIN),
    "one_crowded_scene": ("input_spike", "1.7GiB", UNSEEN_AGAIN),
    "prototypes_averaged": ("graph_retained", "2GiB", UNSEEN_AGAIN),
    "curriculum_table": ("graph_retained", "2.5GiB", UNSEEN_AGAIN),
    "saliency_kept": ("tensors_kept", "1.6GiB", UNSEEN_AGAIN),
    "reaction_history": ("tensors_kept", "2GiB", UNSEEN_AGAIN),
    "texts_encoded": ("missing_no_grad", "3GiB", UNSEEN_AGAIN),
    "committee_vote": ("missing_no_grad", "3GiB", UNSEEN_AGAIN),
    "second_stage": ("stale_model", "0.7GiB", UNSEEN_AGAIN),
    "saved_at_exit": ("stale_model", "1GiB", UNSEEN_AGAIN),
    "tensors_file_kept": ("checkpoint_on_gpu", "0.66GiB", UNSEEN_AGAIN),
    "spectra_between": ("fragmentation", "1.8GiB", UNSEEN_AGAIN),
    "seismic_envelope": ("workspace", "2.4GiB", UNSEEN_AGAIN),
    "document_in_pieces": ("kv_cache", "1.4GiB", UNSEEN_AGAIN),
    "offload_too_late": ("mitigation_inert", "1.5GiB", UNSEEN_AGAIN),
    "single_part": ("mitigation_inert", "2.5GiB", UNSEEN_AGAIN),
    "rays_at_once": ("batch_too_large", "3GiB", SECOND_READER),
    "hinge_gan": ("batch_too_large", "3GiB", SECOND_READER),
    "two_towers": ("model_too_large", "2GiB", SECOND_READER),
    "all_layers_tuned": ("model_too_large", "2GiB", SECOND_READER),
    "adagrad_factors": ("optimizer_state", "1.2GiB", SECOND_READER),
    "actor_and_critics": ("optimizer_state", "0.9GiB", SECOND_READER),
    "transducer_joint": ("logits", "4GiB", SECOND_READER),
    "gemma_trainer": ("logits", "5GiB", SECOND_READER),
    "graph_transformer": ("attention_scores", "3GiB", SECOND_READER),
    "hubert_eager": ("attention_scores", "4GiB", SECOND_READER),
    "one_giant_protein": ("input_spike", "3GiB", SECOND_READER),
    "curvature_steps": ("graph_retained", "2GiB", SECOND_READER),
    "world_model": ("graph_retained", "1.5GiB", SECOND_READER),
    "metric_curve": ("tensors_kept", "1GiB", SECOND_READER),
    "gan_samples": ("tensors_kept", "1.2GiB", SECOND_READER),
    "perplexity_scored": ("missing_no_grad", "3GiB", SECOND_READER),
    "linear_probe": ("missing_no_grad", "3GiB", SECOND_READER),
    "notebook_cells": ("stale_model", "1GiB", SECOND_READER),
    "born_again": ("stale_model", "0.7GiB", SECOND_READER),
    "weights_in_parts": ("checkpoint_on_gpu", "1.55GiB", SECOND_READER),
    "sentences_ascending": ("fragmentation", "1.28GiB", SECOND_READER),
    "pulsar_channels": ("workspace", "1.3GiB", SECOND_READER),
    "chat_sessions": ("kv_cache", "1.3GiB", SECOND_READER),
    "lightning_in_eval": ("mitigation_inert", "3GiB", SECOND_READER),
    "checkpointed_norms": ("mitigation_inert", "3GiB", SECOND_READER),
    "birdsong_tagger": ("batch_too_large", "3GiB", THIRD_READER),
    "ppo_in_one_piece": ("batch_too_large", "0.8GiB", THIRD_READER),
    "whisper_in_full": ("model_too_large", "2GiB", THIRD_READER),
    "shampoo_factors": ("optimizer_state", "0.8GiB", THIRD_READER),
    "pure_functions": ("optimizer_state", "0.8GiB", THIRD_READER),
    "policy_ratios": ("logits", "2GiB", THIRD_READER),
    "student_words": ("logits", "1.5GiB", THIRD_READER),
    "load_curves": ("attention_scores", "2GiB", THIRD_READER),
    "jets_reproducible": ("attention_scores", "3GiB", THIRD_READER),
    "one_power_user": ("input_spike", "1.5GiB", THIRD_READER),
    "one_endless_game": ("input_spike", "3GiB", THIRD_READER),
    "dice_by_batch": ("graph_retained", "1.1GiB", THIRD_READER),
    "curious_rollouts": ("graph_retained", "1.5GiB", THIRD_READER),
    "spectrograms_to_show": ("tensors_kept", "0.6GiB", THIRD_READER),
    "words_remembered": ("tensors_kept", "1GiB", THIRD_READER),
    "passages_reranked": ("missing_no_grad", "2GiB", THIRD_READER),
    "surface_from_field": ("missing_no_grad", "2GiB", THIRD_READER),
    "trials_without_collector": ("stale_model", "0.8GiB", THIRD_READER),
    "saved_where_it_was": ("checkpoint_on_gpu", "0.85GiB", THIRD_READER),
    "duplicates_dropped": ("fragmentation", "2.6GiB", THIRD_READER),
    "features_by_bytes": ("fragmentation", "0.75GiB", THIRD_READER),
    "eigenfaces": ("workspace", "1.4GiB", THIRD_READER),
    "best_of_many": ("kv_cache", "1.6GiB", THIRD_READER),
    "own_loop_over_blocks": ("mitigation_inert", "2GiB", THIRD_READER),
    "policy_saves_all": ("mitigation_inert", "2GiB", THIRD_READER),
    "neighbours_sampled": ("batch_too_large", "1.5GiB", FOURTH_READER),
    "mixer_accelerated": ("model_too_large", "1.3GiB", FOURTH_READER),
    "adapters_on_single": ("model_too_large", "1.6GiB", FOURTH_READER),
    "adan_by_name": ("optimizer_state", "0.9GiB", FOURTH_READER),
    "topics_of_everything": ("logits", "1.8GiB", FOURTH_READER),
    "triangles_attend": ("attention_scores", "1.5GiB", FOURTH_READER),
    "one_panorama": ("input_spike", "1GiB", FOURTH_READER),
    "one_whole_body": ("input_spike", "3GiB", FOURTH_READER),
    "trainer_isotropy": ("graph_retained", "0.8GiB", FOURTH_READER),
    "one_backward_for_all": ("graph_retained", "1.5GiB", FOURTH_READER),
    "gradients_by_step": ("tensors_kept", "0.9GiB", FOURTH_READER),
    "depths_by_dropout": ("tensors_kept", "0.7GiB", FOURTH_READER),
    "vocoder_streamed": ("missing_no_grad", "0.6GiB", FOURTH_READER),
    "critic_sees_more": ("missing_no_grad", "1.5GiB", FOURTH_READER),
    "cached_method": ("stale_model", "0.7GiB", FOURTH_READER),
    "server_rolls_back": ("stale_model", "0.5GiB", FOURTH_READER),
    "moments_in_the_file": ("checkpoint_on_gpu", "0.55GiB", FOURTH_READER),
    "agent_resumed": ("checkpoint_on_gpu", "0.7GiB", FOURTH_READER),
    "widening_weights": ("fragmentation", "0.95GiB", FOURTH_READER),
    "cudnn_left_out": ("workspace", "2GiB", FOURTH_READER),
    "workspace_by_bytes": ("workspace", "1.5GiB", FOURTH_READER),
    "pages_not_returned": ("kv_cache", "0.5GiB", FOURTH_READER),
    "video_watched": ("kv_cache", "1GiB", FOURTH_READER),
    "flash_in_single": ("mitigation_inert", "3GiB", FOURTH_READER),
    "activation_by_hand": ("mitigation_inert", "1.5GiB", FOURTH_READER),
    "molecules_batched": ("batch_too_large", "1.3GiB", FIFTH_READER),
    "fields_forecast": ("batch_too_large", "1.2GiB", FIFTH_READER),
    "mixture_served": ("model_too_large", "0.7GiB", FIFTH_READER),
    "speech_by_options": ("optimizer_state", "1.4GiB", FIFTH_READER),
    "belief_by_hand": ("optimizer_state", "0.8GiB", FIFTH_READER),
    "heads_foretell": ("logits", "1.8GiB", FIFTH_READER),
    "lightning_melodies": ("logits", "2GiB", FIFTH_READER),
    "atoms_attend": ("attention_scores", "0.9GiB", FIFTH_READER),
    "clips_by_spectrogram": ("attention_scores", "1GiB", FIFTH_READER),
    "utterances_padded": ("input_spike", "0.7GiB", FIFTH_READER),
    "buckets_of_sizes": ("input_spike", "3GiB", FIFTH_READER),
    "fast_weights_carried": ("graph_retained", "1GiB", FIFTH_READER),
    "lightning_memory": ("graph_retained", "0.41GiB", FIFTH_READER),
    "latents_on_the_way": ("tensors_kept", "0.6GiB", FIFTH_READER),
    "rankings_joined": ("tensors_kept", "3GiB", FIFTH_READER),
    "words_wrong": ("missing_no_grad", "0.9GiB", FIFTH_READER),
    "plans_imagined": ("missing_no_grad", "0.24GiB", FIFTH_READER),
    "lightning_sweep": ("stale_model", "0.55GiB", FIFTH_READER),
    "inflated_from_pictures": ("checkpoint_on_gpu", "0.5GiB", FIFTH_READER),
    "option_resume": ("checkpoint_on_gpu", "0.68GiB", FIFTH_READER),
    "scans_grow": ("fragmentation", "0.95GiB", FIFTH_READER),
    "ratings_by_svd": ("workspace", "0.8GiB", FIFTH_READER),
    "melodies_continued": ("kv_cache", "0.8GiB", FIFTH_READER),
    "encoder_kept_in_eval": ("mitigation_inert", "0.9GiB", FIFTH_READER),
    "forces_by_gradient": ("mitigation_inert", "3GiB", FIFTH_READER),
    "detector_in_full": ("batch_too_large", "2.5GiB", SIXTH_READER),
    "tower_of_timm": ("model_too_large", "1.9GiB", SIXTH_READER),
    "embeddings_of_entities": ("model_too_large", "2GiB", SIXTH_READER),
    "schedule_by_generator": ("optimizer_state", "1.1GiB", SIXTH_READER),
    "next_place": ("logits", "3GiB", SIXTH_READER),
    "student_of_a_teacher": ("logits", "1GiB", SIXTH_READER),
    "regions_and_words": ("attention_scores", "1GiB", SIXTH_READER),
    "memory_of_all_frames": ("attention_scores", "0.5GiB", SIXTH_READER),
    "one_long_smiles": ("input_spike", "1.5GiB", SIXTH_READER),
    "one_hub": ("input_spike", "1.2GiB", SIXTH_READER),
    "physics_residuals": ("graph_retained", "2GiB", SIXTH_READER),
    "adversary_in_steps": ("graph_retained", "1.6GiB", SIXTH_READER),
    "windows_of_sensors": ("tensors_kept", "0.9GiB", SIXTH_READER),
    "gradients_compared": ("tensors_kept", "0.7GiB", SIXTH_READER),
    "encoder_of_text_frozen": ("missing_no_grad", "1.2GiB", SIXTH_READER),
    "cells_of_validation": ("missing_no_grad", "0.65GiB", SIXTH_READER),
    "leagues_of_players": ("stale_model", "0.35GiB", SIXTH_READER),
    "sizes_tried": ("stale_model", "0.75GiB", SIXTH_READER),
    "policy_from_file": ("checkpoint_on_gpu", "0.22GiB", SIXTH_READER),
    "tiles_of_maps": ("fragmentation", "1.4GiB", SIXTH_READER),
    "kernels_of_many_streams": ("workspace", "1.6GiB", SIXTH_READER, "h200"),
    "audio_of_prime_length": ("workspace", "1.5GiB", SIXTH_READER),
    "speech_token_by_token": ("kv_cache", "0.9GiB", SIXTH_READER),
    "answers_many_beams": ("kv_cache", "0.75GiB", SIXTH_READER),
    "stages_checkpointed": ("mitigation_inert", "0.95GiB", SIXTH_READER),
    "clouds_over_fields": ("batch_too_large", "2GiB", SEVENTH_READER),
    "knee_slices_unrolled": ("batch_too_large", "1.5GiB", SEVENTH_READER),
    "weather_place_by_place": ("model_too_large", "1.6GiB", SEVENTH_READER),
    "muon_on_matrices": ("optimizer_state", "1.2GiB", SEVENTH_READER),
    "genome_by_kmers": ("logits", "2.5GiB", SEVENTH_READER),
    "captions_in_many_tongues": ("logits", "2.2GiB", SEVENTH_READER),
    "enhancers_with_alibi": ("attention_scores", "1.6GiB", SEVENTH_READER),
    "curves_from_context": ("attention_scores", "1.8GiB", SEVENTH_READER),
    "one_slow_film": ("input_spike", "1GiB", SEVENTH_READER),
    "one_deep_tree": ("input_spike", "1GiB", SEVENTH_READER),
    "baseline_of_returns": ("graph_retained", "0.9GiB", SEVENTH_READER),
    "flows_watched": ("graph_retained", "1.5GiB", SEVENTH_READER),
    "chains_of_langevin": ("tensors_kept", "0.9GiB", SEVENTH_READER),
    "poses_as_heatmaps": ("tensors_kept", "0.8GiB", SEVENTH_READER),
    "slides_graded": ("missing_no_grad", "1.5GiB", SEVENTH_READER),
    "moves_searched": ("missing_no_grad", "1.2GiB", SEVENTH_READER),
    "prunings_in_rounds": ("stale_model", "1.1GiB", SEVENTH_READER),
    "rounds_of_labelling": ("stale_model", "1.2GiB", SEVENTH_READER),
    "detector_warm_start": ("checkpoint_on_gpu", "0.6GiB", SEVENTH_READER),
    "prior_over_codes": ("checkpoint_on_gpu", "0.5GiB", SEVENTH_READER),
    "keys_between_distances": ("fragmentation", "2.2GiB", SEVENTH_READER),
    "particles_with_maps": ("fragmentation", "2GiB", SEVENTH_READER),
    "laplacian_of_a_city": ("workspace", "1.5GiB", SEVENTH_READER),
    "images_pixel_by_pixel": ("kv_cache", "1.2GiB", SEVENTH_READER),
    "dense_links_checkpointed": ("mitigation_inert", "0.95GiB", SEVENTH_READER),
    "views_contrasted": ("batch_too_large", "1.2GiB", EIGHTH_READER),
    "flattened_into_linear": ("model_too_large", "1.6GiB", EIGHTH_READER),
    "ensemble_by_vmap": ("model_too_large", "1.7GiB", EIGHTH_READER),
    "heat_by_lbfgs": ("optimizer_state", "1GiB", EIGHTH_READER),
    "masters_in_single": ("optimizer_state", "1.2GiB", EIGHTH_READER),
    "triples_against_all": ("logits", "2GiB", EIGHTH_READER),
    "brainwaves_relative": ("attention_scores", "1.2GiB", EIGHTH_READER),
    "one_rush_hour": ("input_spike", "1.3GiB", EIGHTH_READER),
    "climate_rolled_out": ("graph_retained", "1.1GiB", EIGHTH_READER),
    "pictures_restored": ("graph_retained", "1GiB", EIGHTH_READER),
    "galaxies_in_motion": ("tensors_kept", "1GiB", EIGHTH_READER),
    "speech_cleaned_live": ("tensors_kept", "0.9GiB", EIGHTH_READER),
    "calibrated_afterwards": ("missing_no_grad", "1.3GiB", EIGHTH_READER),
    "samples_at_epoch_end": ("missing_no_grad", "1.2GiB", EIGHTH_READER),
    "tasks_one_by_one": ("stale_model", "0.9GiB", EIGHTH_READER),
    "restarts_drawn": ("stale_model", "1GiB", EIGHTH_READER),
    "averages_resumed": ("checkpoint_on_gpu", "0.5GiB", EIGHTH_READER),
    "cells_neighbours": ("fragmentation", "1.8GiB", EIGHTH_READER),
    "signs_aligned": ("workspace", "1.2GiB", EIGHTH_READER),
    "heartbeats_of_a_night": ("workspace", "1.2GiB", EIGHTH_READER),
    "robot_that_remembers": ("kv_cache", "1GiB", EIGHTH_READER),
    "prefix_for_all_endings": ("kv_cache", "1.3GiB", EIGHTH_READER),
    "config_said_checkpoint": ("mitigation_inert", "1GiB", EIGHTH_READER),
    "wrapped_by_other_name": ("mitigation_inert", "1GiB", EIGHTH_READER),
    "integrator_checkpointed": ("mitigation_inert", "1GiB", EIGHTH_READER),
    "rows_by_the_hundred_thousand": ("batch_too_large", "1.2GiB", NINTH_READER),
    "surfaces_by_neighbours": ("batch_too_large", "2GiB", NINTH_READER),
    "splines_for_weights": ("model_too_large", "0.85GiB", NINTH_READER),
    "grids_of_a_room": ("model_too_large", "1.1GiB", NINTH_READER),
    "essays_by_trainer": ("optimizer_state", "1.05GiB", NINTH_READER),
    "minima_made_flat": ("optimizer_state", "0.95GiB", NINTH_READER),
    "characters_of_scrolls": ("logits", "0.9GiB", NINTH_READER),
    "cloze_for_linguists": ("logits", "1.3GiB", NINTH_READER),
    "offline_decisions": ("attention_scores", "1GiB", NINTH_READER),
    "latents_by_einsum": ("attention_scores", "1GiB", NINTH_READER),
    "frames_that_collapse": ("input_spike", "0.8GiB", NINTH_READER),
    "accounts_of_a_bank": ("input_spike", "1.5GiB", NINTH_READER),
    "statistics_by_hand": ("graph_retained", "0.6GiB", NINTH_READER),
    "weights_that_mattered": ("graph_retained", "0.4GiB", NINTH_READER),
    "noise_of_a_population": ("tensors_kept", "0.8GiB", NINTH_READER),
    "looks_of_the_tracked": ("tensors_kept", "0.35GiB", NINTH_READER),
    "flips_and_turns": ("missing_no_grad", "1.2GiB", NINTH_READER),
    "hospitals_that_share": ("stale_model", "0.7GiB", NINTH_READER),
    "rolled_back_after_a_spike": ("checkpoint_on_gpu", "0.75GiB", NINTH_READER),
    "units_of_speech": ("fragmentation", "1.4GiB", NINTH_READER),
    "shape_of_the_search": ("workspace", "0.78GiB", NINTH_READER),
    "fastest_by_trial": ("workspace", "1.6GiB", NINTH_READER),
    "likelihoods_of_choices": ("kv_cache", "1GiB", NINTH_READER),
    "recomputed_by_hand": ("mitigation_inert", "0.7GiB", NINTH_READER),
    "adapters_above_a_frozen_stem": ("mitigation_inert", "0.6GiB", NINTH_READER),
    "codec_of_sounds": ("batch_too_large", "1GiB", TENTH_READER),
    "leaves_by_trainer": ("batch_too_large", "0.9GiB", TENTH_READER),
    "four_models_of_an_assistant": ("model_too_large", "1.4GiB", TENTH_READER),
    "genes_squeezed": ("optimizer_state", "0.56GiB", TENTH_READER),
    "crosses_of_features": ("optimizer_state", "0.9GiB", TENTH_READER),
    "words_by_their_company": ("logits", "1.4GiB", TENTH_READER),
    "adapters_over_many_words": ("logits", "1.3GiB", TENTH_READER),
    "pixels_for_a_perceiver": ("attention_scores", "1GiB", TENTH_READER),
    "crops_of_cells": ("input_spike", "1GiB", TENTH_READER),
    "critics_estimate": ("graph_retained", "1GiB", TENTH_READER),
    "optimizer_that_learns": ("graph_retained", "0.6GiB", TENTH_READER),
    "requests_remembered": ("tensors_kept", "0.33GiB", TENTH_READER),
    "batches_in_advance": ("tensors_kept", "0.35GiB", TENTH_READER),
    "flow_refined": ("missing_no_grad", "0.6GiB", TENTH_READER),
    "subjects_of_papers": ("missing_no_grad", "0.75GiB", TENTH_READER),
    "generations_of_networks": ("stale_model", "0.6GiB", TENTH_READER),
    "bits_compared": ("stale_model", "0.52GiB", TENTH_READER),
    "loader_with_a_memory": ("checkpoint_on_gpu", "0.4GiB", TENTH_READER),
    "pipeline_from_one_file": ("checkpoint_on_gpu", "0.37GiB", TENTH_READER),
    "models_in_turn": ("fragmentation", "1.25GiB", TENTH_READER),
    "elites_of_a_generation": ("fragmentation", "1.6GiB", TENTH_READER),
    "corners_of_a_lattice": ("workspace", "0.8GiB", TENTH_READER),
    "proteins_proposed": ("kv_cache", "0.65GiB", TENTH_READER),
    "thoughts_in_a_tree": ("kv_cache", "0.9GiB", TENTH_READER),
    "backbone_in_script": ("mitigation_inert", "0.7GiB", TENTH_READER),
    "voices_from_text": ("batch_too_large", "2GiB", ELEVENTH_READER, "rtx-4090"),
    "traffic_of_sensors": ("batch_too_large", "2GiB", ELEVENTH_READER, "rtx-4090"),
    "echoes_of_a_reservoir": ("model_too_large", "2GiB", ELEVENTH_READER, "rtx-4090"),
    "masses_of_cattle": ("optimizer_state", "3.5GiB", ELEVENTH_READER, "rtx-4090"),
    "pumps_that_wear": ("optimizer_state", "1.8GiB", ELEVENTH_READER, "rtx-4090"),
    "pieces_by_ctc": ("logits", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "teeth_in_xrays": ("attention_scores", "2.5GiB", ELEVENTH_READER, "rtx-4090"),
    "variates_as_tokens": ("attention_scores", "2GiB", ELEVENTH_READER, "rtx-4090"),
    "one_bright_flash": ("input_spike", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "one_drawn_out_vowel": ("input_spike", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "penalty_now_and_then": ("graph_retained", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "adapted_from_the_last_task": ("graph_retained", "2GiB", ELEVENTH_READER, "rtx-4090"),
    "bank_of_patches": ("tensors_kept", "1.3GiB", ELEVENTH_READER, "rtx-4090"),
    "where_the_reader_looked": ("tensors_kept", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "whole_scene_sharpened": ("missing_no_grad", "2GiB", ELEVENTH_READER, "rtx-4090"),
    "importance_by_permutation": ("missing_no_grad", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "merged_for_each_customer": ("stale_model", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "checkpoints_compared": ("checkpoint_on_gpu", "1.3GiB", ELEVENTH_READER, "rtx-4090"),
    "restored_run": ("checkpoint_on_gpu", "1.4GiB", ELEVENTH_READER, "rtx-4090"),
    "hypotheses_thinned": ("fragmentation", "2.8GiB", ELEVENTH_READER, "rtx-4090"),
    "gradients_of_low_rank": ("workspace", "1GiB", ELEVENTH_READER, "rtx-4090"),
    "stories_without_end": ("kv_cache", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "caches_set_up": ("kv_cache", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "tickets_with_padding": ("mitigation_inert", "1.2GiB", ELEVENTH_READER, "rtx-4090"),
    "dropout_off_for_ratios": ("mitigation_inert", "1.5GiB", ELEVENTH_READER, "rtx-4090"),
    "relief_from_stereo": ("batch_too_large", "2.5GiB", TWELFTH_READER, "rtx-4090"),
    "presses_of_letters": ("model_too_large", "3GiB", TWELFTH_READER, "rtx-4090"),
    "sketch_controlled": ("model_too_large", "2.5GiB", TWELFTH_READER, "rtx-4090"),
    "words_averaged_later": ("optimizer_state", "1.7GiB", TWELFTH_READER, "rtx-4090"),
    "pictures_from_a_codebook": ("logits", "2GiB", TWELFTH_READER, "rtx-4090"),
    "news_in_a_hundred_tongues": ("logits", "2GiB", TWELFTH_READER, "rtx-4090"),
    "gestures_by_videomae": ("attention_scores", "2.2GiB", TWELFTH_READER, "rtx-4090"),
    "one_wide_table": ("input_spike", "1.5GiB", TWELFTH_READER, "rtx-4090"),
    "one_archive_of_mails": ("input_spike", "2GiB", TWELFTH_READER, "rtx-4090"),
    "traces_of_eligibility": ("graph_retained", "1.5GiB", TWELFTH_READER, "rtx-4090"),
    "two_readings_of_a_scan": ("graph_retained", "1.5GiB", TWELFTH_READER, "rtx-4090"),
    "frames_interpolated": ("tensors_kept", "1GiB", TWELFTH_READER, "rtx-4090"),
    "states_of_all_layers": ("tensors_kept", "1GiB", TWELFTH_READER, "rtx-4090"),
    "voices_verified": ("missing_no_grad", "1.5GiB", TWELFTH_READER, "rtx-4090"),
    "reviews_judged": ("missing_no_grad", "1.5GiB", TWELFTH_READER, "rtx-4090"),
    "watchers_of_a_run": ("stale_model", "1.5GiB", TWELFTH_READER, "rtx-4090"),
    "index_holds_its_encoder": ("stale_model", "2GiB", TWELFTH_READER, "rtx-4090"),
    "voice_from_its_training_file": ("checkpoint_on_gpu", "2.3GiB", TWELFTH_READER, "rtx-4090"),
    "affinities_then_layout": ("fragmentation", "2GiB", TWELFTH_READER, "rtx-4090"),
    "pictures_ever_larger": ("fragmentation", "2.2GiB", TWELFTH_READER, "rtx-4090"),
    "grid_of_prime_sides": ("workspace", "2.5GiB", TWELFTH_READER, "rtx-4090"),
    "fields_drawn": ("workspace", "1.5GiB", TWELFTH_READER, "rtx-4090"),
    "shops_forecast": ("kv_cache", "1.5GiB", TWELFTH_READER, "rtx-4090"),
    "computed_before_the_call": ("mitigation_inert", "1.5GiB", TWELFTH_READER, "rtx-4090"),
    "wide_heads_of_a_decoder": ("mitigation_inert", "1.5GiB", TWELFTH_READER, "rtx-4090"),
}


def run(name, runs=None):
    """What `oomph run` says about a job, or `oomph explain` about a run of it that is kept in `runs`."""
    _, memory, _, *gpu = JOBS[name]
    with tempfile.TemporaryDirectory() as place:
        place = runs / name if runs else Path(place)
        place.mkdir(parents=True, exist_ok=True)
        command = [os.path.join(os.path.dirname(sys.executable), "oomph")]
        kept, explained = place / "run/summary.json", place / "run/explanation.json"
        if kept.exists():
            explained = place / "again.json"
            command += ["explain", "--no-report", "--json", str(explained), str(place / "run")]
        else:
            command += [
                "run", "--gpu", gpu[0] if gpu else "rtx-3060", "--memory", memory, "--out", "run",
                str(FOLDER / "jobs" / f"{name}.py"),
            ]  # fmt: skip
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, cwd=place, timeout=LIMIT)
        said = json.loads(kept.read_text()) if kept.exists() else {}
        why = json.loads(explained.read_text()) if explained.exists() else {}
        failed = "" if said else (done.stderr or done.stdout)[-400:]
    return said, why, failed, round(time.monotonic() - began, 1)


def measure(name, runs):
    """One row of the results."""
    cause, memory, split, *gpu = JOBS[name]
    said, why, failed, seconds = run(name, runs)
    causes = why.get("causes", [])
    oom = said.get("oom") or {}
    row = dict(
        planted=cause, split=split, memory=memory, gpu=gpu[0] if gpu else "rtx-3060", verdict=said.get("verdict"),
        phase=oom.get("phase"), step=oom.get("step"), short_bytes=oom.get("short_bytes"),
        named=causes[0]["id"] if causes else None, says=causes[0]["verdict"] if causes else failed,
        others=[f"{c['id']} {c['confidence']:.2f}" for c in causes[1:]],
        fixes=[{k: f.get(k) for k in ("lever", "advice", "saves_bytes", "enough")} for f in why.get("fixes", [])],
        seconds=seconds,
    )  # fmt: skip
    row["right"] = row["named"] == cause
    return row


def table(jobs):
    """Prints the rows, and how many are right."""
    for name, row in jobs.items():
        mark = "✓" if row["right"] else "✗"
        print(f"{mark} {name:24} {row['planted']:18} {row['named']!s:20} {row['says'][:110]}")
    for split in SPLITS:
        rows = [row for row in jobs.values() if row["split"] == split]
        if rows:
            print(f"{split}: {sum(row['right'] for row in rows)} of {len(rows)}")


def main():
    """Runs what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", choices=SPLITS)
    parser.add_argument("--only", default="")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--runs", type=Path, help="keep the runs here, and explain those that are")
    args = parser.parse_args()
    if args.table:
        table(json.loads(args.out.read_text())["jobs"])
        return
    chosen = args.only.split(",") if args.only else list(JOBS)
    jobs, runs = {}, args.runs and args.runs.resolve()
    chosen = [name for name in chosen if args.split in (None, JOBS[name][2])]
    with ThreadPoolExecutor(2) as pool:
        for name, row in zip(chosen, pool.map(lambda name: measure(name, runs), chosen)):
            jobs[name] = row
            print(name, "✓" if row["right"] else f"✗ {row['named']}", file=sys.stderr, flush=True)
    result = dict(
        machine="2-core VM", date=time.strftime("%Y-%m-%d"),
        command=" ".join(["python", "bench/causes/run.py", *sys.argv[1:]]), jobs=jobs,
    )  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    table(jobs)


if __name__ == "__main__":
    main()
